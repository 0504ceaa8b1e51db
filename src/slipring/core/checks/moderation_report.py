"""The report of a turn's checks: for the response object, and for the node that the response leaves."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from slipring.core.checks.policies import Check, Policy, answer_of
from slipring.core.checks.verdicts import Finding, Side, Subject, Verdict
from slipring.protocol.responses import ResponseModeration, ResponseModerationError, ResponseModerationResult

WITHHELD = "withheld"
"""The category of input that was refused before, and that a model did not get."""
_TEXT: list[Literal["text", "image"]] = ["text"]


class _Side:
    """The verdicts about the input, or about the output."""

    __slots__ = ("answered", "failed", "flagged", "hits", "scores")

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.failed: dict[str, str] = {}
        """By check: why it gave no answer."""
        self.flagged = False
        self.scores: dict[str, float] = {}
        """The highest score of each category."""
        self.hits: set[str] = set()

    def add(self, verdict: Verdict) -> None:
        if verdict.failed is not None:
            self.failed[verdict.check] = verdict.failed
            return
        self.answered.add(verdict.check)
        self.flagged |= verdict.flagged
        self.hits.update(verdict.categories)
        for category, score in verdict.scores.items():
            self.scores[category] = max(score, self.scores.get(category, 0.0))

    def result(self, policy: Policy) -> ResponseModerationResult | ResponseModerationError:
        if self.failed and not self.flagged:
            check, why = next(iter(self.failed.items()))
            return ResponseModerationError("check_failed", f"The safety check '{check}' failed: {why}.")
        # A category without a score is flagged by a check that gives none.
        scores = {**dict.fromkeys(sorted(self.hits), 1.0), **self.scores}
        return ResponseModerationResult(
            model=", ".join(sorted(self.answered or {check.name for check in policy.checks})),
            flagged=self.flagged,
            categories={category: category in self.hits for category in scores},
            category_scores=scores,
            category_applied_input_types=dict.fromkeys(scores, _TEXT),
        )


class Report:
    """The verdicts of a turn, as they arrive."""

    __slots__ = ("_findings", "_input", "_output", "input_ms", "withheld")

    def __init__(self) -> None:
        self._input = _Side()
        self._output = _Side()
        self._findings: dict[Finding, None] = {}
        self.input_ms = 0.0
        """The time of the check of the input that took longest."""
        self.withheld: Counter[str] = Counter()
        """By check: how many items of the input were withheld."""

    def add(self, subject: Subject, checks: Iterable[Check], verdicts: Sequence[Verdict]) -> None:
        for check in checks:
            verdict = answer_of(check, verdicts)
            (self._input if subject.side == "input" else self._output).add(verdict)
            if subject.side == "input":
                self.input_ms = max(self.input_ms, verdict.ms)
            if verdict.flagged:
                finding = Finding(
                    subject.side, subject.kind, verdict.check, verdict.version, verdict.categories
                )
                self._findings[finding] = None

    def withhold(self, check: str, verdicts: Iterable[Verdict]) -> None:
        """Note that an item of the input is withheld, because this check has refused it before."""
        self.withheld[check] += 1
        self._input.hits.add(WITHHELD)
        for verdict in verdicts:
            self._input.add(verdict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was flagged, each finding once."""
        return tuple(self._findings)

    def unanswered(self, *sides: Side) -> set[str]:
        """The checks that gave no answer about something on one of these sides."""
        by_side = {"input": self._input, "output": self._output}
        return {check for side in sides for check in by_side[side].failed}

    def moderation(self, policy: Policy) -> ResponseModeration:
        return ResponseModeration(self._input.result(policy), self._output.result(policy))
