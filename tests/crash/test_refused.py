"""A server that is killed after a check has refused something, and before anything was saved.

The test holds the database's write lock: what the server saves waits for it, so that the server is killed
between a verdict and its save, whatever the machine's speed.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import apsw

from tests.commands.test_cli import Process, launched
from tests.crash.refusing_check import SECRET

CONFIG = """
[[check]]
name = "guard"
source = "python:tests.crash.refusing_check:refusing_check"
action = "block"
subjects = ["message"]

[[check]]
name = "cutter"
source = "python:tests.crash.refusing_check:refusing_check"
action = "cut"
mode = "hold"
subjects = ["answer"]
"""
ANSWER = [{"text": f"{'fine. ' * 60}then {SECRET} and more"}]


@asynccontextmanager
async def served(directory: Path, answers: list[Any]) -> AsyncIterator[tuple[Process, Any]]:
    """A server on the database of this directory, and a socket to it."""
    script, config = directory / "script.jsonl", directory / "config.toml"
    script.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
    config.write_text(CONFIG)
    arguments = ("--engine", f"simulated:script={script},tokens_per_s=0", "--config", str(config))
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    async with (
        launched(*arguments, "--store", f"sqlite:{directory}/store.db", PYTHONPATH=path) as process,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{process.url}/responses") as socket,
    ):
        yield process, socket


async def until(socket: Any, *kinds: str) -> dict[str, Any]:
    """The next event of one of these types."""
    while True:
        event: dict[str, Any] = await socket.receive_json(timeout=300)
        if event["type"] in kinds:
            return event


async def create(socket: Any, text: str, previous: str | None = None) -> None:
    await socket.send_json(
        {"type": "response.create", "model": "simulated", "input": text, "previous_response_id": previous}
    )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else can write to the database."""
    connection = apsw.Connection(f"{directory}/store.db")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def kept(directory: Path) -> bytes:
    """Everything that the database's files contain, the log of what is not in the table yet included."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("store.db*")))


async def test_a_server_that_is_killed_before_the_save_keeps_nothing_refused(tmp_path: Path) -> None:
    async with served(tmp_path, [[{"text": "one"}], ANSWER, ANSWER]) as (process, socket):
        await create(socket, "hello")
        first = (await until(socket, "response.completed"))["response"]["id"]
        with locked(tmp_path):
            await create(socket, f"tell me about {SECRET}", first)
            blocked = await until(socket, "error", "response.failed")
            assert "invalid_prompt" in json.dumps(blocked)
            await create(socket, "go on", first)
            item = await until(socket, "response.output_item.done")
            assert item["item"]["content"][0]["text"].startswith("fine. ")
            process.process.send_signal(signal.SIGKILL)
            await process.process.wait()
    assert b"hello" in kept(tmp_path)
    assert SECRET.encode() not in kept(tmp_path)
    async with served(tmp_path, [[{"text": "two"}]]) as (_, socket):
        await create(socket, "go on", first)
        response = (await until(socket, "response.completed", "error"))["response"]
        assert response["output"][0]["content"][0]["text"] == "two"
    assert SECRET.encode() not in kept(tmp_path)
