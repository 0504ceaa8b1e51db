"""Fails the test that leaves an HTTP client session of aiohttp open.

aiohttp warns of such a session when it is freed, and that may be in any later test of the process.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import aiohttp
import pytest


class _Created(NamedTuple):
    session: aiohttp.ClientSession
    loop: asyncio.AbstractEventLoop
    place: str


class ClientSessions:
    """The sessions that were created in this process, until they are closed."""

    def __init__(self) -> None:
        self._created: list[_Created] = []

    def add(self, session: aiohttp.ClientSession, place: str) -> None:
        self._created.append(_Created(session, asyncio.get_running_loop(), place))

    def take_left_open(self) -> list[str]:
        """Where the open sessions were created whose loop is closed. Each of them is returned once."""
        left = [each for each in self._created if not each.session.closed]
        self._created = [each for each in left if not each.loop.is_closed()]
        lost = [each for each in left if each.loop.is_closed()]
        for each in lost:
            each.session.detach()  # aiohttp need not warn of it, too
        return [each.place for each in lost]


def creator_of_session() -> FrameType:
    """The code that creates a session, for those who replace ``ClientSession.__init__``."""
    frame = sys._getframe(1)
    while frame.f_code.co_name.endswith("_init") and frame.f_back is not None:
        frame = frame.f_back
    return frame


@contextmanager
def tracked_sessions() -> Iterator[ClientSessions]:
    """Keep the sessions that are created while the block runs."""
    sessions, init = ClientSessions(), aiohttp.ClientSession.__init__

    def tracked_init(session: aiohttp.ClientSession, *args: Any, **options: Any) -> None:
        init(session, *args, **options)
        creator = creator_of_session()
        sessions.add(session, f"{creator.f_code.co_filename}:{creator.f_lineno}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiohttp.ClientSession, "__init__", tracked_init)
        yield sessions
