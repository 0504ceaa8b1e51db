"""Policies: which checks inspect which subjects of a turn, and what follows from their verdicts.

Pure data. The operator configures checks and policies; a request can add checks to its policy and remove
none.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal, get_args

import msgspec
from msgspec import Struct, structs

from slipring.core.checks.verdicts import Kind, Side, Subject, Verdict

Action = Literal["flag", "cut", "block"]
Mode = Literal["hold", "follow", "audit"]
OnError = Literal["open", "closed"]
Ending = Literal["incomplete", "refusal"]
Scope = Literal["new", "all"]

KINDS: tuple[Kind, ...] = get_args(Kind)
KINDS_OF: dict[Side, tuple[Kind, ...]] = {
    "input": ("message", "tool_output", "instructions", "summary"),
    "output": ("answer", "call", "reasoning"),
}
"""The kinds of subjects by the side on which they first appear."""
_ACTIONS: tuple[Action, ...] = get_args(Action)
"""The least strict first."""


class Check(Struct, frozen=True):
    """A check and how its verdicts are used."""

    name: str
    version: str = ""
    """Identifies everything that a verdict depends on: source, settings, thresholds. A verdict of another
    version does not count."""
    subjects: tuple[Kind, ...] = KINDS
    action: Action = "flag"
    """What a flagged subject leads to. ``flag``: it is reported. ``cut``: the answer ends where it is.
    ``block``: the turn fails."""
    mode: Mode = "follow"
    """When output is inspected. ``hold``: before it is released. ``follow``: after, one window behind.
    ``audit``: after the turn has ended."""
    on_error: OnError = "open"
    """What a check that gave no answer leads to. ``open``: nothing. ``closed``: the turn fails."""
    before: bool = False
    """Whether the engine gets the job only after the input has passed."""
    context: int = 0
    """How many earlier texts of the conversation the check reads with each subject."""
    ending: Ending = "incomplete"
    """How an answer that is cut ends."""
    longest_match: int = 0
    """Characters at the end of a text in which a match may have begun that is not complete yet: a gate that
    holds back this many releases no part of a match. 0: unknown, or not applicable."""

    def inspects(self, subject: Subject) -> bool:
        return subject.kind in self.subjects

    def covers(self, verdict: Verdict) -> bool:
        """Whether a verdict is this check's answer, so that the subject need not be inspected again."""
        return verdict.check == self.name and verdict.version == self.version and verdict.failed is None


class Policy(Struct, frozen=True):
    """The checks of a turn. Without checks it allows everything.

    A check can be listed more than once, by the operator and by the request for example: then the strictest
    entry counts for each kind of subject.
    """

    checks: tuple[Check, ...] = ()
    scope: Scope = "new"
    """What of a turn is inspected. ``new``: what it adds to its context. ``all``: the whole context, also the
    part of a chain that was made under another policy."""
    digest: bytes = b""
    """Identifies the checks, all that they lead to, and what they inspect of a chain."""

    def __post_init__(self) -> None:
        digest = blake2b(msgspec.msgpack.encode((self.checks, self.scope)), digest_size=16).digest()
        structs.force_setattr(self, "digest", digest)

    def on(self, kind: Kind) -> tuple[Check, ...]:
        """The checks that inspect subjects of a kind, each once."""
        found: dict[str, Check] = {}
        for check in self.checks:
            if kind in check.subjects:
                known = found.get(check.name)
                if known is None or _ACTIONS.index(check.action) > _ACTIONS.index(known.action):
                    found[check.name] = check
        return tuple(found.values())

    def with_checks(self, added: Iterable[Check]) -> "Policy":
        """This policy with further checks. Those that it has stay as strict as they are."""
        return Policy((*self.checks, *added), self.scope)


NO_POLICY = Policy()
