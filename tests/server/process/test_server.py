"""Start and stop of a server, and requests to stop."""

import asyncio
import os
import signal

from slipring.config.settings import Config
from slipring.server.process.server import Server
from slipring.server.process.shutdown import StopRequest
from tests.harness import PuppetEngine


async def test_a_signal_that_uvloop_reports_twice_counts_once() -> None:
    """uvloop does so if another signal arrives with it."""
    request = StopRequest()
    request.hang_up()
    for _ in range(2):
        request.signal()
    assert request.requested.is_set()
    assert not request.immediate.is_set()


class LoadingEngine(PuppetEngine):
    """An engine that never finishes loading."""

    def __init__(self) -> None:
        super().__init__()
        self.loading = asyncio.Event()
        self.closed = False

    async def start(self) -> None:
        self.loading.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def test_a_signal_stops_a_server_whose_engine_is_loading() -> None:
    engine = LoadingEngine()
    server = Server(Config(port=0), engine=engine)
    serving = asyncio.create_task(server.serve(lambda server: None))
    await engine.loading.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 300)
    assert engine.closed
