"""The policy of one turn: the operator's, with the checks that the request adds.

A request can ask for checks (``moderation``). It can make the policy stricter, and never less strict.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from msgspec import structs

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.core.checks.policies import KINDS_OF, Check, Policy
from slipring.core.checks.verdicts import Side
from slipring.protocol.requests import ModerationConfig

ALL_CHECKS = "omni-moderation-latest"
"""The name that stands for all checks of the operator's policy: clients send it by default."""


class Policies(Protocol):
    """The checks of a server, and the policies that apply to one caller."""

    @property
    def checks(self) -> Mapping[str, Check]:
        """By name."""

    def policy_of(self, model: str) -> Policy:
        """The policy of a turn of this model."""


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
    raise InvalidRequest(
        f"Invalid 'moderation.model': {quoted(name)} is no safety check of this server. It has {known}.",
        param="moderation.model",
    )
