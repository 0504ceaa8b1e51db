"""Writes that may have been committed although their connection was lost or the disk reported an error.

They are repeated, so that a second one changes nothing, until it is known that they took effect.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slipring.base.errors import Unavailable

_T = TypeVar("_T")
_PAUSES_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses before the attempts to find out whether a write with an unknown outcome was committed."""


async def until_known(attempt: Callable[[], Awaitable[_T]], unknown: str) -> _T:
    """Call ``attempt`` until it raises no ``Unavailable``, and return its result: it repeats a write unless
    that has taken effect.

    If it never succeeds, raises an ``Unavailable`` which says what is ``unknown``.
    """
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            return await attempt()
        except Unavailable:
            continue
    raise Unavailable(f"The store cannot be reached: it is not known {unknown}.")
