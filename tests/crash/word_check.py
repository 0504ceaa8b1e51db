"""A safety check that takes its time: it refuses texts with one word. Servers of the storm load it."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from slipring.core.checks.verdicts import Subject

FORBIDDEN = "forbidden"
_LONGEST_S = 0.05


def word_check() -> Callable[[Subject], Awaitable[bool]]:
    async def inspect(subject: Subject) -> bool:
        await asyncio.sleep(random.uniform(0, _LONGEST_S))
        return FORBIDDEN in subject.text

    return inspect
