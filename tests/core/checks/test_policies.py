"""Policies: the strictest entry of a check counts, and requests can only add."""

import pytest
from msgspec import structs

from slipring.core.checks.policies import KINDS, KINDS_OF, NO_POLICY, Check, Policy
from slipring.core.checks.verdicts import Subject, Verdict

FLAG = Check("a", "1", action="flag")
BLOCK = Check("a", "1", action="block", mode="hold", subjects=KINDS_OF["input"])
CUT = Check("a", "1", action="cut", subjects=("answer",))


def test_every_kind_belongs_to_one_side() -> None:
    assert sorted(KINDS) == sorted(kind for kinds in KINDS_OF.values() for kind in kinds)


@pytest.mark.parametrize("order", [(FLAG, BLOCK, CUT), (CUT, BLOCK, FLAG), (BLOCK, FLAG, CUT)])
def test_the_strictest_entry_counts_for_each_kind(order: tuple[Check, ...]) -> None:
    policy = Policy(order)
    found = {kind: [check.action for check in policy.on(kind)] for kind in KINDS}
    assert found["message"] == found["summary"] == ["block"]
    assert (found["answer"], found["call"]) == (["cut"], ["flag"])


def test_a_request_adds_checks_and_removes_none() -> None:
    operators = Policy((BLOCK,))
    asked = operators.with_checks([FLAG, Check("b", subjects=("answer",))])
    assert asked.on("message") == (BLOCK,)
    assert [check.name for check in asked.on("answer")] == ["a", "b"]
    assert asked.digest != operators.digest
    assert operators.with_checks([]) == operators


def test_digests_identify_what_a_policy_leads_to() -> None:
    assert Policy((BLOCK,)).digest == Policy((structs.replace(BLOCK),)).digest
    changed = [structs.replace(BLOCK, version="2"), structs.replace(BLOCK, before=True), FLAG]
    digests = {Policy((check,)).digest for check in (BLOCK, *changed)}
    assert len({*digests, NO_POLICY.digest}) == 5


def test_a_verdict_counts_for_the_version_that_gave_it() -> None:
    verdict = Verdict("a", "1", flagged=False)
    assert BLOCK.covers(verdict)
    assert not BLOCK.covers(structs.replace(verdict, version="2"))
    assert not BLOCK.covers(structs.replace(verdict, check="b"))
    assert not BLOCK.covers(structs.replace(verdict, failed="down"))


def test_a_check_inspects_the_kinds_that_it_lists() -> None:
    assert BLOCK.inspects(Subject("input", "tool_output", "x"))
    assert not BLOCK.inspects(Subject("output", "answer", "x"))
