"""Decisions and reports: what a policy makes of verdicts."""

import pytest

from slipring.core.checks.moderation_report import Report
from slipring.core.checks.policies import Action, Check, Consequence, Policy, checks_of, decide
from slipring.core.checks.verdicts import Side, Subject, Verdict
from slipring.protocol.responses import ResponseModerationError, ResponseModerationResult

QUESTION = Subject("input", "message", "hi")
ANSWER = Subject("output", "answer", "ho")


def flag(name: str, **scores: float) -> Verdict:
    return Verdict(name, "", flagged=True, scores=scores, categories=tuple(scores))


def test_the_strictest_ruling_counts():
    checks = [
        Check("a", action="flag"),
        Check("b", action="cut", ending="refusal"),
        Check("c", action="block"),
        Check("d", action="cut", on_error="closed"),
    ]
    verdicts = [flag("a"), flag("b"), flag("c")]
    expected: list[tuple[int, Consequence]] = [(1, "flag"), (2, "cut"), (3, "block")]
    for count, consequence in expected:
        decision = decide(ANSWER, checks[:count], verdicts[:count])
        assert decision is not None
        assert (decision.consequence, decision.check) == (consequence, "abc"[count - 1])
    failed = decide(ANSWER, [checks[1], checks[3]], [flag("b")])
    assert failed is not None
    assert (failed.consequence, failed.check) == ("fail", "d")
    assert decide(ANSWER, checks, [Verdict(name, "", flagged=False) for name in "abcd"]) is None


@pytest.mark.parametrize(("side", "consequence"), [("input", "block"), ("output", "cut")])
def test_input_cannot_be_cut(side: Side, consequence: Consequence):
    decision = decide(Subject(side, "message", "hi"), [Check("a", action="cut")], [flag("a")])
    assert decision is not None
    assert decision.consequence == consequence


@pytest.mark.parametrize(("action", "when"), [("flag", "follow"), ("cut", "hold"), ("block", "hold")])
def test_input_that_may_be_refused_is_waited_for(action: Action, when: str):
    policy = Policy((Check("a", action=action, mode="follow"), Check("late", action="block", mode="audit")))
    for each in ("hold", "follow"):
        assert len(checks_of(policy, QUESTION, each)) == (each == when)
    assert [check.name for check in checks_of(policy, QUESTION, "audit")] == ["late"]


def test_errors_tell_the_check_and_what_was_refused():
    blocked = decide(QUESTION, [Check("a", action="block")], [flag("a")])
    failed = decide(ANSWER, [Check("a", on_error="closed")], [])
    assert blocked is not None
    assert failed is not None
    assert blocked.error().message == "The input was blocked by the safety check 'a'."
    assert failed.error().message == "The safety check 'a' is not available. Try again later."
    assert (failed.error().status, failed.error().type) == (503, "server_error")


def test_a_report_has_the_highest_scores_of_each_side():
    policy = Policy((Check("a"), Check("b")))
    report = Report()
    report.add(
        QUESTION, policy.checks, [flag("a", violence=0.9), Verdict("b", "", False, {"spam": 0.1}, ms=3)]
    )
    report.add(QUESTION, policy.checks, [Verdict("a", "", False, {"violence": 0.2}), flag("b")])
    report.add(ANSWER, policy.checks[:1], [Verdict("a", "", False, {"violence": 0.1})])
    moderation = report.moderation(policy)
    assert moderation.input == ResponseModerationResult(
        model="a, b",
        flagged=True,
        categories={"violence": True, "spam": False},
        category_scores={"violence": 0.9, "spam": 0.1},
        category_applied_input_types={"violence": ["text"], "spam": ["text"]},
    )
    assert isinstance(moderation.output, ResponseModerationResult)
    assert (moderation.output.flagged, moderation.output.model) == (False, "a")
    assert [finding.check for finding in report.findings] == ["a", "b"]
    assert report.input_ms == 3


def test_a_category_without_a_score_counts_as_certain():
    report = Report()
    report.add(QUESTION, [Check("a")], [Verdict("a", "", flagged=True, categories=("key",))])
    result = report.moderation(Policy((Check("a"),))).input
    assert isinstance(result, ResponseModerationResult)
    assert result.category_scores == {"key": 1.0}


def test_a_check_that_failed_is_an_error_unless_another_flags():
    policy = Policy((Check("a"), Check("b")))
    report = Report()
    report.add(QUESTION, policy.checks, [Verdict("a", "", flagged=False)])
    report.add(ANSWER, policy.checks, [flag("a")])
    moderation = report.moderation(policy)
    assert moderation.input == ResponseModerationError(
        "check_failed", "The safety check 'b' failed: it gave no answer."
    )
    assert isinstance(moderation.output, ResponseModerationResult)


def test_a_side_without_subjects_is_not_flagged():
    result = Report().moderation(Policy((Check("b"), Check("a")))).output
    assert result == ResponseModerationResult("a, b", False, {}, {}, {})
