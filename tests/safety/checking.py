"""Functions that tests configure as checks, and a source that they control."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from slipring.config.tables import CheckEntry
from slipring.core.checks.verdicts import Subject
from slipring.core.tenant_caches import TenantCache
from slipring.safety.source_calls import Findings, RunningCheck
from tests.safety.guarding import BAD


def said(text: str, **fields: Any) -> Subject:
    """A message of a user."""
    return Subject(**{"side": "input", "kind": "message", "text": text, "role": "user"} | fields)


def synchronous_check(word: str = BAD) -> Callable[[Subject], dict[str, float]]:
    return lambda subject: {"danger": 0.9 if word in subject.text else 0.1}


def asynchronous_check(word: str = BAD) -> Any:
    class Check:
        version = "7"
        longest_match = len(word)

        async def __call__(self, subject: Subject) -> bool:
            await asyncio.sleep(0)
            return word in subject.text

    return Check()


def answering(answer: object) -> Callable[[Subject], object]:
    """A factory of a check that answers always the same, or raises it."""

    def check(subject: Subject) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return check


def broken_factory() -> Callable[[Subject], bool]:
    raise RuntimeError("no model")


class ControlledSource:
    """Flags texts that contain the word. Calls wait while ``gate`` is closed, and fail with ``error``."""

    version = "1"
    longest_match = 0

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.answers: list[Any] | None = None
        """Answered instead of true findings."""
        self.calls: list[tuple[str, list[str]]] = []
        """The tenant and texts of each call."""
        self.began, self.ended = asyncio.Semaphore(0), asyncio.Semaphore(0)
        """Released whenever a call begins, and ends."""
        self.running = self.most_running = 0

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        self.calls.append((tenant, [subject.text for subject in subjects]))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.began.release()
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
            self.ended.release()
        if self.error is not None:
            raise self.error
        if self.answers is not None:
            return self.answers
        return [Findings({"danger": 0.9 if BAD in subject.text else 0.2}) for subject in subjects]


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def running(
    source: ControlledSource, clock: Clock | None = None, *, late_s: float | None = None, **fields: Any
) -> RunningCheck:
    """A check with a controlled source, started."""
    entry = CheckEntry("c", "controlled", **fields)
    check = RunningCheck(entry, source, TenantCache(2**24), clock or Clock(), late_s=late_s)
    await check.start()
    return check
