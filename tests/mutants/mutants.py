"""The mutants: each is a fault that was planted once, as a change of the source.

``machine``: the property machine that finds it. Where two guards ensure the same, a mutant removes both.
"""

from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parent.parent.parent / "src"
_CORE = "slipring/core"
_PROGRAM, _TURNS = f"{_CORE}/session/turn_program.py", f"{_CORE}/session/session.py"


class Change(NamedTuple):
    """A text of a source file, and what replaces it."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    name: str
    machine: str
    changes: tuple[Change, ...]

    def plant(self, src: Path) -> None:
        """Change a copy of the source."""
        for change in self.changes:
            path = src / change.file
            text = path.read_text()
            assert text.count(change.old) == 1, f"{self.name}: {change.file} has changed"
            path.write_text(text.replace(change.old, change.new))


def _mutant(name: str, machine: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, machine, tuple(Change(*change) for change in changes))


MUTANTS = (
    _mutant(
        "the lane of a refused turn stays busy",
        "connections",
        (_PROGRAM, "if self.turn in self._shared.lanes.running():", "if False:"),
    ),
    _mutant(
        "the next turn of a lane does not begin",
        "connections",
        (f"{_CORE}/session/lanes.py", "        if lane.waiting:\n", "        if False:\n"),
    ),
    _mutant(
        "the bytes of an ended turn stay charged",
        "connections",
        (
            _PROGRAM,
            "        self.unpin()\n        shared.charges.release(turn)\n",
            "        self.unpin()\n",
        ),
    ),
    _mutant(
        "the parent of an ended turn stays pinned",
        "connections",
        (_PROGRAM, "            cache.unpin(state)\n", "            pass\n"),
    ),
    _mutant(
        "a closed connection keeps what its turns have pinned",
        "connections",
        (_TURNS, "            program.unpin()\n", "            pass\n"),
    ),
    _mutant(
        "a finished response is not remembered",
        "connections",
        (_PROGRAM, "            shared.remember(turn, state)\n", "            pass\n"),
    ),
    _mutant(
        "a failed continuation keeps its parent",
        "connections",
        (
            f"{_CORE}/chain/state_cache.py",
            "        if self.lane_of(response_id) == lane:\n",
            "        if False:\n",
        ),
    ),
    _mutant(
        "the prefill of a resumed rollout goes on",
        "connections",
        (
            _PROGRAM,
            "        self._end_growth(response_id)\n        return between_steps.resume(turn)\n",
            "        return between_steps.resume(turn)\n",
        ),
    ),
    _mutant(
        "a response does not wait for its hosted calls",
        "connections",
        (_PROGRAM, "        while turn.is_calling:\n", "        while False:\n"),
    ),
    _mutant(
        "the hosted calls of a failed response run on",
        "connections",
        (_PROGRAM, "            shared.actions.append(CancelCalls(turn))\n", "            pass\n"),
    ),
    _mutant(
        "the steers of a failed response are lost",
        "connections",
        (
            f"{_CORE}/session/steers.py",
            'return self._fail(steers, "response_not_active", why, is_blocked=turn.is_blocked), None',
            'self._fail(steers, "response_not_active", why, is_blocked=turn.is_blocked)\n'
            "            return [], None",
        ),
    ),
    _mutant(
        "late results of work are accepted",
        "connections",
        (
            _TURNS,
            "        if work.turn.wait is work:\n            self._resume(work.turn, result)\n",
            "        if True:\n            self._resume(work.turn, result)\n",
        ),
    ),
    _mutant(
        "late deltas are accepted",
        "connections",
        (f"{_CORE}/turn/delivery.py", "        if turn.wait is not work:\n", "        if False:\n"),
    ),
    _mutant(
        "late results of hosted calls are accepted",
        "connections",
        (_TURNS, "        return turn in self._programs and not turn.is_closed\n", "        return True\n"),
        (
            f"{_CORE}/turn/output/hosted_calls.py",
            "        call = self.running.pop(call_id, None)\n",
            "        call = _ALL[call_id] = self.running.pop(call_id, None) or _ALL.get(call_id)\n",
        ),
        (
            f"{_CORE}/turn/output/hosted_calls.py",
            "_REQUEST_CANCELLED = -32800\n",
            "_REQUEST_CANCELLED = -32800\n_ALL = {}\n",
        ),
    ),
    _mutant(
        "an answer ends before its verdicts",
        "safety",
        (_PROGRAM, "            while not checks.gate.is_settled:\n", "            while False:\n"),
    ),
    _mutant(
        "a check's refusal has no effect",
        "safety",
        (
            _TURNS,
            "        if (error := turn.checks.error) is not None:\n",
            "        if (error := turn.checks.error) is not None and False:\n",
        ),
    ),
    _mutant(
        "an engine reads what has not passed",
        "safety",
        (_PROGRAM, "                while checks.gate.holds_input:\n", "                while False:\n"),
    ),
    _mutant(
        "appended outputs are not committed after their verdicts",
        "safety",
        (_PROGRAM, "            shared.send(between_steps.commit_appended(turn))\n", "            pass\n"),
    ),
)
