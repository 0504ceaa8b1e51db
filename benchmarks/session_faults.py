"""What a record of ``session_check.py`` says against sessions."""

from typing import Any

_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "sessions")
_UNLIKELY = 0.02
"""Which part of the tokens may be less likely than the likeliest by more than bfloat16 explains. One lost or
doubled token makes most of those after it unlikely."""
_BY_CHANCE = 4
"""So many answers more than twice those of the control may differ."""
_STATES = ("after chains", "after leaving", "after servers", "after minutes", "at the end")
"""When nothing may be held. After a restart stored chains are, which may go on."""
_AGAIN = "whole = whole again"
_CONTROL, _COMPARED = "control: twice without sessions", "with sessions against without"


def faults(record: dict[str, Any]) -> list[str]:
    """Each in a line; none if sessions were right and nothing was left behind."""
    found = []
    for part, told in record.items():
        if not isinstance(told, dict):
            continue
        if not _is_by_chance(told):
            found += [f"{part}: {fault}" for fault in _wrong(told)]
        state = told if part in _STATES else told.get("after", {})
        found += [f"{part}: {name} is {state[name]}" for name in _GAUGES if state.get(name)]
        if _COMPARED in told:
            found += [f"{part}: {fault}" for fault in _unequal(told)]
    preemption, restart = record.get("preemption"), record.get("restart")
    found += [f"servers: {fault}" for fault in _kept_out(record.get("servers", {}))]
    if preemption and not preemption["preemptions"]:
        found.append("preemption: vLLM has preempted nothing")
    if restart and not restart.get("restarts"):
        found.append("restart: the command has failed")
    if restart and not restart["continued after"]:
        found.append("restart: no turn went on in a session afterwards")
    return found


def _kept_out(servers: dict[str, Any]) -> list[str]:
    """Whose clients had no sessions, of two servers that are used in turn and then both at once."""
    if not servers:
        return []
    found = [
        f"no turn went on in a session: {name}"
        for name in ("first", "second", "first again", "both")
        if not servers[name]["continued"]
    ]
    if servers["second, at once"]["opened"]:
        found.append("the clients of the first have left room for those of the second")
    return found


def _is_by_chance(told: dict[str, Any]) -> bool:
    """Whether turns with settings differ from whole requests about as often as these do among themselves."""
    if _AGAIN not in told:
        return False
    theirs, ours = (told["turns"] - told[name] for name in (_AGAIN, "equal"))
    # Others that are wrong were answered although the whole request was refused.
    return bool(ours == told["wrongs"] <= _most(theirs))


def _most(theirs: int) -> int:
    """So many answers may differ where so many of the control do."""
    return 2 * theirs + _BY_CHANCE if theirs else 0


def _wrong(told: dict[str, Any]) -> list[str]:
    found = [str(each)[:200] for each in told.get("wrong", ())]
    if told.get("unlikely", 0) > _UNLIKELY * told.get("tokens", 0):
        found.append(f"{told['unlikely']} of {told['tokens']} tokens are unlikely")
    return found


def _unequal(told: dict[str, Any]) -> list[str]:
    """Answers with sessions may differ from those without where two runs without differ, too, and about as
    often."""
    control, compared = told[_CONTROL], told[_COMPARED]
    found = []
    theirs, ours = control["differing"], compared["differing"]
    if ours > _most(theirs):
        found.append(f"{ours} answers differ with sessions, {theirs or 'none'} without")
    if failed := control["failed"] + compared["failed"]:
        found.append(f"{failed} answers have failed")
    if not told["sessions"]["continued"]:
        found.append("no turn went on in a session")
    return found
