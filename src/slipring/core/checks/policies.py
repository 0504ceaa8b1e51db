"""Policies: which checks inspect which subjects of a turn, and what follows from their verdicts.

The operator configures checks and policies. A request can add checks to the policy of its turn
(``moderation``), and remove none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, Protocol, get_args

import msgspec
from msgspec import Struct, structs

from slipring.base.errors import (
    ApiError,
    InvalidPrompt,
    InvalidRequest,
    Unavailable,
    UnsupportedParameter,
    quoted,
)
from slipring.core.checks.verdicts import Kind, Side, Subject, Verdict
from slipring.protocol.requests import ModerationConfig

# Checks, and the policies that consist of them.

Action = Literal["flag", "cut", "block"]
Mode = Literal["hold", "follow", "audit"]
"""When a subject is inspected: before it is released, while the turn goes on, or after the turn."""
OnError = Literal["open", "closed"]
OnImages = Literal["open", "closed"]
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


def default_mode(action: Action) -> Mode:
    """When a check inspects output if its entry does not say it."""
    return "hold" if action == "block" else "follow"


def default_on_error(action: Action) -> OnError:
    """What a check leads to that gave no answer, if its entry does not say it."""
    return "open" if action == "flag" else "closed"


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
    on_images: OnImages = "open"
    """What an image leads to that the check would have to inspect: checks read texts. ``open``: the check
    reads in the text that there is one. ``closed``: the turn is refused."""
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


class AssignedChecks(Struct, frozen=True):
    """The names of the checks that the operator has assigned to keys, tenants and models, or to all."""

    keys: Mapping[str, tuple[str, ...]]
    tenants: Mapping[str, tuple[str, ...]]
    models: Mapping[str, tuple[str, ...]]
    default: tuple[str, ...] | None

    def checks_of(self, key_id: str | None, tenant: str, model: str) -> tuple[str, ...] | None:
        """The checks of a turn: those of its key, else of its tenant, else of its model, else the default;
        None if nothing is assigned."""
        if key_id is not None and (names := self.keys.get(key_id)) is not None:
            return names
        return self.tenants.get(tenant, self.models.get(model, self.default))


ALL_CHECKS = "omni-moderation-latest"
"""The name that stands for all checks of the operator's policy: clients send it by default."""


class Policies(Protocol):
    """The checks of a server, and the policies that apply to one caller."""

    @property
    def checks(self) -> Mapping[str, Check]:
        """By name."""

    def policy_of(self, model: str) -> Policy:
        """The policy of a turn of this model."""


class NoPolicies:
    """Of a server without checks."""

    checks: Mapping[str, Check] = {}

    def policy_of(self, model: str) -> Policy:
        return NO_POLICY


def policy_of_turn(policies: Policies, model: str, asked: ModerationConfig | None) -> Policy:
    """The policy of a turn of this model that asks for these checks. Raises ``InvalidRequest``."""
    policy = policies.policy_of(model)
    return policy if asked is None else policy.with_checks(_added(policies, policy, asked))


def _added(policies: Policies, policy: Policy, asked: ModerationConfig) -> Iterator[Check]:
    sides = asked.policy
    modes: dict[Side, str] = {
        "input": "score" if sides is None or sides.input is None else sides.input.mode,
        "output": "score" if sides is None or sides.output is None else sides.output.mode,
    }
    for check in _named(policies, policy, asked.model):
        for side, mode in modes.items():
            added = structs.replace(check, subjects=KINDS_OF[side])
            if mode == "block":
                yield structs.replace(added, action="block", mode="hold", on_error="closed")
            else:
                yield structs.replace(added, action="flag", mode="follow", on_error="open")


def _named(policies: Policies, policy: Policy, name: str) -> tuple[Check, ...]:
    """The checks that a name stands for: one, or all of the policy."""
    if not policies.checks:
        raise UnsupportedParameter(
            "Unsupported parameter: 'moderation' is not supported by this server.", param="moderation"
        )
    if name in policies.checks:
        return (policies.checks[name],)
    if name == ALL_CHECKS and policy.checks:
        return policy.checks
    known = ", ".join(f"'{each}'" for each in policies.checks)
    raise InvalidRequest.at(
        "moderation.model", f"{quoted(name)} is not a safety check of this server. It has {known}"
    )


# What follows from verdicts.

Consequence = Literal["flag", "cut", "fail", "block"]
"""``fail``: a check gave no answer, and the policy requires one."""
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


def continuation_error(check: str) -> InvalidPrompt:
    """The error of a turn that continues a response which a check has refused after its end."""
    return InvalidPrompt(f"The response to continue was blocked by the safety check '{check}'.")


def checks_of(policy: Policy, subject: Subject, when: Mode) -> tuple[Check, ...]:
    """The checks that inspect a subject at this time.

    Input that is only reported holds up nothing. Input that may be refused always does: no answer to it is
    released before. Output is inspected as each check says.
    """
    return tuple(check for check in policy.on(subject.kind) if _when(check, subject.side) == when)


def _when(check: Check, side: Side) -> Mode:
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
