"""Decisions: what a policy makes of the verdicts about one subject."""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from slipring.base.errors import ApiError, InvalidPrompt, Unavailable
from slipring.core.checks.policies import Check, Ending, Policy
from slipring.core.checks.verdicts import Kind, Side, Subject, Verdict

Consequence = Literal["flag", "cut", "fail", "block"]
"""``fail``: a check gave no answer, and the policy requires one."""
When = Literal["hold", "follow", "audit"]
"""When a check inspects a subject: before it is released, while the turn goes on, or after the turn."""
_STRICTNESS: dict[Consequence, int] = {"flag": 0, "cut": 1, "fail": 2, "block": 3}
_NO_ANSWER = "it gave no answer"


class Decision(Struct, frozen=True):
    """What follows from the verdict of one check about one subject."""

    consequence: Consequence
    check: str
    side: Side
    kind: Kind
    ending: Ending = "incomplete"

    @property
    def stops(self) -> bool:
        """Whether the turn ends because of it."""
        return self.consequence != "flag"

    def error(self) -> ApiError:
        """The error of a turn that is blocked, or fails because a check did. It names the check, and nothing
        that was inspected."""
        if self.consequence == "fail":
            return Unavailable(f"The safety check '{self.check}' is not available. Try again later.")
        what = "The input" if self.side == "input" else "The answer"
        return InvalidPrompt(f"{what} was blocked by the safety check '{self.check}'.")


def checks_of(policy: Policy, subject: Subject, when: When) -> tuple[Check, ...]:
    """The checks that inspect a subject at this time.

    Input that is only reported holds up nothing. Input that may be refused always does: no answer to it is
    released before. Output is inspected as each check says.
    """
    return tuple(check for check in policy.on(subject.kind) if _when(check, subject.side) == when)


def _when(check: Check, side: Side) -> When:
    if check.mode == "audit" or side == "output":
        return check.mode
    return "follow" if check.action == "flag" else "hold"


def decide(subject: Subject, checks: Iterable[Check], verdicts: Sequence[Verdict]) -> Decision | None:
    """The strictest of the decisions about a subject; None if no check objects.

    A check that is missing from the verdicts counts as one that gave no answer. Input cannot be cut: it is
    blocked instead.
    """
    strictest: Decision | None = None
    for check in checks:
        consequence = _consequence(check, answer_of(check, verdicts), subject.side)
        if consequence is None:
            continue
        if strictest is None or _STRICTNESS[consequence] > _STRICTNESS[strictest.consequence]:
            strictest = Decision(consequence, check.name, subject.side, subject.kind, check.ending)
    return strictest


def answer_of(check: Check, verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of this check; a failed one if it is missing."""
    for verdict in verdicts:
        if verdict.check == check.name:
            return verdict
    return Verdict(check.name, check.version, flagged=False, failed=_NO_ANSWER)


def _consequence(check: Check, verdict: Verdict, side: Side) -> Consequence | None:
    if verdict.failed is not None:
        return "fail" if check.on_error == "closed" else None
    if not verdict.flagged:
        return None
    return "block" if check.action == "cut" and side == "input" else check.action
