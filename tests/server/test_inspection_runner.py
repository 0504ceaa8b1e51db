"""Inspections and audits without a server: what each check is asked, and what happens if one fails."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from slipring.base.errors import Unavailable
from slipring.core.checks.answer_gate import Gate, Inspection
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import Check, Policy
from slipring.core.checks.verdicts import NodeVerdicts, Subject, Verdict
from slipring.core.turn.turn_checks import Audit, InspectedItems
from slipring.server.inspection_runner import Audits, inspect
from tests.core.connection import node

POLICY = Policy(
    (
        Check("reader", context=1, subjects=("message",)),
        Check("broken", subjects=("message",)),
        Check("late", action="block", mode="audit"),
    )
)
QUESTION = Subject("input", "message", "bad", context=("one", "two"))


class Checks:
    """Runs checks as an inspector does. The one named ``broken`` raises."""

    def __init__(self) -> None:
        self.asked: dict[str, Sequence[Subject]] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def inspect(self, check: str, subjects: Sequence[Subject], tenant: str) -> list[Verdict]:
        self.asked[check] = subjects
        await self.may_answer.wait()
        if check == "broken":
            raise RuntimeError("a fault of ours")
        return [Verdict(check, "", flagged="bad" in subject.text) for subject in subjects]


class Store:
    """Keeps verdicts, or is unavailable."""

    def __init__(self, *, is_up: bool = True) -> None:
        self.kept: dict[str, NodeVerdicts] = {}
        self._is_up = is_up

    async def judge(self, tenant: str, response_id: str, verdicts: NodeVerdicts) -> None:
        if not self._is_up:
            raise Unavailable("The store cannot be reached.")
        self.kept[response_id] = verdicts


def audit() -> Audit:
    state = node("resp_1")
    state.verdicts = NodeVerdicts(POLICY.digest, is_audited=True)
    items = InspectedItems(Gate(POLICY), KnownVerdicts(0), "t")
    return Audit("t", state, Inspection(0, (QUESTION,), POLICY, "audit"), items, is_stored=True)


async def test_each_check_gets_what_it_reads_and_one_that_raises_has_no_verdict(caplog: Any) -> None:
    checks: Any = Checks()
    answer = Subject("output", "answer", "fine")
    (given, nothing) = await inspect(checks, Inspection(1, (QUESTION, answer), POLICY, "follow"), "t")
    assert [(verdict.check, verdict.flagged) for verdict in given] == [("reader", True)]
    assert nothing == []
    assert [subject.context for subject in checks.asked["reader"]] == [("two",)]
    assert [subject.context for subject in checks.asked["broken"]] == [()]
    assert "'broken' failed unexpectedly" in caplog.text
    assert "bad" not in caplog.text


async def test_an_audit_stores_what_it_has_found() -> None:
    checks: Any = Checks()
    store: Any = Store()
    audits, one = Audits(checks, store), audit()
    audits.start(one)
    await audits.wait()
    assert one.state.refused_by == "late"
    assert store.kept == {"resp_1": one.state.verdicts}
    await audits.close()
    assert (audits.passed, audits.refused, audits.lost) == (0, 1, 0)


@pytest.mark.parametrize("is_up", [True, False])
async def test_an_audit_is_ended_with_the_server_and_survives_a_store_that_is_down(
    is_up: bool, caplog: Any
) -> None:
    checks: Any = Checks()
    store: Any = Store(is_up=is_up)
    audits, one = Audits(checks, store), audit()
    if is_up:
        checks.may_answer.clear()
    audits.start(one)
    if not is_up:
        await audits.wait()
        assert "could not be stored" in caplog.text
    await audits.close()
    assert (one.state.refused_by is None) == is_up
    assert store.kept == {}
    assert audits.lost == is_up
    assert ("1 audits had not ended" in caplog.text) == is_up
