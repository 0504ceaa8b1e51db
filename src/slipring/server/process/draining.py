"""How a server drains: nothing new is accepted, and running responses finish within the deadline."""

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from slipring.base.errors import ApiError
from slipring.server.process.stop_requests import StopRequest, run_until

if TYPE_CHECKING:
    # Not at run time: a supervisor drains too, and needs no part of a service.
    from slipring.server.service import Service

_TICKS_S = 2.0
"""The deadline is enforced by the tick of the server: so much later, nothing is waited for any more."""


async def drain(
    service: "Service", refusal: ApiError, stop: StopRequest, on_drain: Callable[[int], None] | None = None
) -> None:
    """Let running responses and their audits finish, until their deadline or a request to stop at once. Calls
    ``on_drain`` with the number of responses that it waits for. ``refusal``: what new requests get."""
    grace_s = service.config.limits.drain_timeout_s
    for client in list(service.clients):
        client.wind_down(refusal, grace_s)
    if on_drain is not None:
        on_drain(sum(client.in_flight for client in service.clients))
    await run_until(stop.immediate, _idle(service), timeout_s=grace_s + _TICKS_S)


async def _idle(service: "Service") -> None:
    """Wait until no client is served, and the responses that they have got are audited."""
    await service.wait_until_idle()
    await service.audits.wait()


def print_wait(stop: StopRequest, responses: int, timeout_s: float) -> None:
    """Print to standard error, at any log level, why the process does not stop yet."""
    if not responses or not timeout_s or stop.immediate.is_set():
        return
    noun = "response" if responses == 1 else "responses"
    start = "\r" if sys.stderr.isatty() else ""  # over the terminal's echo of Ctrl-C
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(
            f"{start}slipring: waiting for {responses} running {noun}, up to {timeout_s:g} s;"
            f" {stop.hint} to stop at once",
            file=sys.stderr,
            flush=True,
        )
