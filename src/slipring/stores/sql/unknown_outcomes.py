"""Writes that may have been committed although their connection was lost.

They are repeated, with a guard, until it is known that exactly one of them took effect.
"""

import asyncio
from collections.abc import Awaitable, Callable

from slipring.errors import Unavailable

_PAUSES_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses before the attempts to find out whether a write was committed whose connection was lost."""


async def until_known(attempt: Callable[[], Awaitable[None]], unknown: str) -> None:
    """Call ``attempt`` until it raises no ``Unavailable``: it repeats a write unless that has taken effect.

    If it never succeeds, raises an ``Unavailable`` which says what is ``unknown``.
    """
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            await attempt()
            return
        except Unavailable:
            continue
    raise Unavailable(f"The store cannot be reached: it is not known {unknown}.")
