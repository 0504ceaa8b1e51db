"""Hints about the loop that a request belongs to, for servers that read them.

A turn of a loop that runs goes before the first turn of one that begins, because its context is in the cache
and its client waits between two tools. Both go before warmups and summaries, for which no client waits.
"""

from typing import Any

from slipring.core.generation import Job
from slipring.engines.addresses_and_options import option

_ENDS_LEARNT = 50.0
_FIRST_GUESS = 256.0


def hints_option() -> Any:
    return option(
        "",
        "hints for the server about the loop of each request: dynamo (`nvext.agent_hints`); empty: none",
        choices=("", "dynamo"),
    )


def goes_on(job: Job) -> bool:
    """Whether a job is a later turn of its chain. A history that begins like another one, before any answer,
    is a chain of its own."""
    return job.parent is not None and job.parent.root_id != job.response_id


def urgency(job: Job) -> int:
    """2 for a turn of a loop that runs, 1 for the first turn of a loop, 0 for what no client waits for."""
    if not job.generate or job.is_summary:
        return 0
    return 2 if goes_on(job) else 1


class AnswerLengths:
    """How long answers are, learnt while they end."""

    def __init__(self) -> None:
        self._mean = _FIRST_GUESS
        self._weight = 1.0

    def observe(self, tokens: int) -> None:
        self._weight = min(self._weight + 1.0, _ENDS_LEARNT)
        self._mean += (tokens - self._mean) / self._weight

    def expected(self, most: int) -> int:
        """The length of an answer of at most so many tokens."""
        return max(min(round(self._mean), most), 1)


def agent_hints(job: Job, expected_tokens: int | None = None, *, prefills: bool = False) -> dict[str, Any]:
    """The field by which Dynamo's router reads hints. ``prefills``: whether it is to prefill what probably
    follows, because slipring does not."""
    hints: dict[str, Any] = {"priority": urgency(job)}
    if expected_tokens is not None:
        hints["osl"] = expected_tokens
    if prefills and job.generate and not job.is_summary and not job.offer.forbidden:
        hints["speculative_prefill"] = True
    return {"nvext": {"agent_hints": hints}}
