"""A server's life, from outside."""

import asyncio
import os
import signal

from slipring.config import Config
from slipring.server.process.server import Server
from slipring.server.process.shutdown import Stopping
from tests.harness import PuppetEngine


async def test_a_signal_that_is_reported_twice_is_one_signal() -> None:
    """As uvloop does when it comes together with another one."""
    stopping = Stopping()
    stopping.hang_up()
    for _ in range(2):
        stopping.ask()
    assert stopping.asked.is_set()
    assert not stopping.hurried.is_set()


class Slow(PuppetEngine):
    """Loads for as long as anybody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.loading = asyncio.Event()
        self.closed = False

    async def start(self) -> None:
        self.loading.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def test_a_server_that_is_told_to_stop_while_its_engine_loads_stops() -> None:
    engine = Slow()
    server = Server(Config(port=0), engine=engine)
    serving = asyncio.create_task(server.serve(lambda server: None))
    await engine.loading.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 60)
    assert engine.closed
