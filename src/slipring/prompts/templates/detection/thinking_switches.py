"""Finds the variables by which a chat template turns thoughts on and off, and keeps those of earlier answers.

A variable counts if the source names it and rendering with two of its values gives two texts.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from slipring.prompts.templates.detection.probes import (
    IDS,
    NEXT_QUESTION,
    QUESTION,
    STRINGS,
    TEXT,
    THOUGHT,
    Probe,
    output,
    user,
)
from slipring.protocol.items.items import Effort

EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh")
"""The API's efforts, least first."""
_USUAL: tuple[Effort, ...] = ("medium", "low", "high")
"""Which of several efforts that do the same is shown."""
Variables = dict[str, object]
_TOGGLES: tuple[tuple[str, object, object], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("reasoning", True, False),
)
"""Variables that turn thoughts on and off, with both values."""
_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
_OFF_LEVELS = ("none", "no_think")
_FREE_LEVELS = ("low", "medium", "high")
"""What a template that writes any effort into its prompt is given."""
_UNKNOWN = "unheard-of"
_BUDGET = "thinking_budget"
_BUDGETS: Mapping[str, int] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": -1,
}
_KEEPERS: tuple[tuple[str, object], ...] = (
    ("preserve_thinking", True),
    ("preserved_thinking", True),
    ("clear_thinking", False),
    ("truncate_history_thinking", False),
    ("drop_thinking", False),
    ("keep_all_reasoning", True),
    ("keep_past_thinking", True),
    ("skip_thinking", False),
)
"""Variables that keep the thoughts of earlier answers."""


class ThinkingSwitches(Struct, frozen=True, kw_only=True):
    """The variables of a template that control thoughts."""

    by_effort: Mapping[str, Variables] = {}
    """The variables for each of the API's efforts; empty if the template has none."""
    thinks_by_default: bool | None = None
    """Whether the model thinks if no variable is passed; None if the template has no switch, or lets the
    model decide."""
    can_be_off: bool = False
    """Whether effort ``none`` turns thoughts off."""
    keep: Variables = {}
    keeps_by_default: bool = False
    """Whether the template writes the thoughts of all earlier answers without a variable."""

    def variables(self, effort: str | None) -> Variables:
        """The variables for an effort of the API; None is the model's default."""
        return dict(self.by_effort.get(effort, {})) if effort is not None else {}

    def distinct_efforts(self) -> tuple[Effort, ...]:
        """One effort for each set of variables, least first: the others do the same as one of these."""
        groups: list[list[Effort]] = []
        for effort in EFFORTS if self.by_effort else ():
            alike = [group for group in groups if self.variables(group[0]) == self.variables(effort)]
            if alike:
                alike[0].append(effort)
            else:
                groups.append([effort])
        return tuple(next((usual for usual in _USUAL if usual in group), group[0]) for group in groups)

    def keep_variables(self) -> Variables:
        """The variables with which the thoughts of earlier answers stay in the context."""
        return dict(self.keep)


def find_switches(probe: Probe, source: str) -> ThinkingSwitches:
    """Find the switches of a template. ``probe`` has no variables."""
    toggle = _find_toggle(probe, source)
    by_effort: dict[str, Variables] = {effort: {} for effort in EFFORTS}
    if toggle is not None:
        by_effort = {effort: dict(toggle[effort == "none"]) for effort in EFFORTS}
    off_is_known = toggle is not None
    for name in _named_in(source, _EFFORTS):
        levels = _find_levels(probe.using(by_effort["high"]), name)
        for effort in EFFORTS[1 if toggle is not None else 0 :]:
            by_effort[effort] |= levels.variables(name, effort)
        off_is_known = off_is_known or levels.off is not None
    if _reads(probe, source, _BUDGET, -1, 0):
        for effort in EFFORTS:
            by_effort[effort] |= {_BUDGET: _BUDGETS[effort]}
        off_is_known = True
    if not any(by_effort.values()):
        by_effort = {}
    keep, keeps_by_default = _find_keeper(probe.using(by_effort.get("high", {})), source)
    return ThinkingSwitches(
        by_effort=by_effort,
        thinks_by_default=_thinks_by_default(probe, by_effort) if off_is_known else None,
        can_be_off=off_is_known,
        keep=keep,
        keeps_by_default=keeps_by_default,
    )


def _find_toggle(probe: Probe, source: str) -> tuple[Variables, Variables] | None:
    """The variable that turns thoughts on and off, with both values; None if there is none."""
    for name, on, off in _TOGGLES:
        if _reads(probe, source, name, on, off):
            return {name: on}, {name: off}
    return None


def _reads(probe: Probe, source: str, name: str, one: object, other: object) -> bool:
    """Whether the prompt depends on a variable."""
    if not any(_named_in(source, (name,))):
        return False
    texts = [_prompt(probe.using({name: value})) for value in (one, other)]
    return texts[0] is not None and texts[1] is not None and texts[0] != texts[1]


def _named_in(source: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if re.search(rf"\b{name}\b", source)]


def _prompt(probe: Probe) -> str | None:
    """What a template writes for a question, with tools and without; None if it refuses both."""
    texts = [probe.write([user(QUESTION)], prompt=True, tools=tools) for tools in (True, False)]
    return None if texts == [None, None] else "\n".join(text or "" for text in texts)


class _Levels(Struct, frozen=True):
    """The values that a variable takes for an effort."""

    known: tuple[str, ...] = ()
    off: str | None = None
    others_are_default: bool = False
    """Whether the template treats all other values as if there were none."""

    def variables(self, name: str, effort: str) -> Variables:
        if effort == "none" and self.off is not None:
            return {name: self.off}
        if not self.known:
            return {}
        if effort in self.known:
            return {name: effort}
        if self.others_are_default:
            return self._nearest_end(name, effort)
        rank = _LEVELS.index(effort) if effort in _LEVELS else 0
        higher = [level for level in self.known if _LEVELS.index(level) >= rank]
        return {name: higher[0] if higher else self.known[-1]}

    def _nearest_end(self, name: str, effort: str) -> Variables:
        """A special value for the highest or lowest effort, or none: the default is between them."""
        lowest, highest = self.known[0], self.known[-1]
        if effort in ("none", "minimal") and lowest in ("minimal", "low"):
            return {name: lowest}
        return {name: highest} if effort == "xhigh" and highest in ("high", "max") else {}


def _find_levels(probe: Probe, name: str) -> _Levels:
    variables = dict(probe.variables)
    written = {
        level: _prompt(probe.using(variables | {name: level})) for level in (*_OFF_LEVELS, *_LEVELS, _UNKNOWN)
    }
    unknown = written.pop(_UNKNOWN)
    if unknown is not None and _UNKNOWN in unknown:
        return _Levels(known=_FREE_LEVELS)
    usable = [level for level, text in written.items() if text is not None and text != unknown]
    default = _named_default(written, unknown) if unknown is not None else None
    if default is not None:
        known = tuple(level for level in _LEVELS if level in usable or level == default)
        return _Levels(known=known, off=next((level for level in _OFF_LEVELS if level in usable), None))
    return _Levels(
        known=tuple(level for level in _LEVELS if level in usable),
        off=next((level for level in _OFF_LEVELS if level in usable), None),
        others_are_default=unknown is not None,
    )


def _named_default(written: Mapping[str, str | None], default: str) -> str | None:
    """The level that the prompt names if there is no known one, and else not: GLM-5.3's ``Max``."""
    others = [text for text in written.values() if text is not None and text != default]
    named = (level for level in _LEVELS if written[level] == default and _count(level, default))
    return next(
        (level for level in named if others and not any(_count(level, text) for text in others)), None
    )


def _count(word: str, text: str) -> int:
    return len(re.findall(rf"\b{word}\b", text, re.IGNORECASE))


def _thinks_by_default(probe: Probe, by_effort: Mapping[str, Variables]) -> bool | None:
    default = _prompt(probe)
    if default == _prompt(probe.using(by_effort["none"])):
        return False
    return True if any(default == _prompt(probe.using(by_effort[effort])) for effort in EFFORTS[1:]) else None


def _find_keeper(probe: Probe, source: str) -> tuple[Variables, bool]:
    """The variable that keeps the thoughts of earlier turns, and whether they are kept without one."""
    if _keeps(probe):
        return {}, True
    for name, value in _KEEPERS:
        if _named_in(source, (name,)) and _keeps(probe.using({**probe.variables, name: value})):
            return {name: value}, False
    return {}, False


def _keeps(probe: Probe) -> bool:
    """Whether the thoughts of a tool loop and of an answer are written once the user has gone on."""
    answer = [probe.answer(thoughts=THOUGHT, text=TEXT), user(NEXT_QUESTION)]
    loop = [probe.answer(thoughts=THOUGHT, calls=[STRINGS]), output(IDS[0])]
    with_loop = probe.write([user(QUESTION), *loop, *answer], prompt=True) or ""
    without_tools = probe.write([user(QUESTION), *answer], prompt=True, tools=False) or ""
    return (with_loop + without_tools).count(THOUGHT) == 3
