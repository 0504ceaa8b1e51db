"""Inputs that once showed a fault show none now, and the fuzzer notices the faults that are planted here."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from slipring.core.session import client_events
from slipring.server.request_decoding import LARGE_BYTES, RequestDecoder
from tests.fuzz.frames import inputs
from tests.fuzz.frames.client import Client, Judge
from tests.fuzz.frames.corpus import Corpus, valid_inputs
from tests.fuzz.frames.inputs import LEVELS, Bytes, Input, Settle, Text
from tests.fuzz.frames.minimising import Minimiser
from tests.fuzz.frames.raw_frames import PING, TEXT, frame, missing_bytes
from tests.fuzz.frames.servers import faults_in
from tests.harness import serve

FOUND = sorted((inputs.FOUND).glob("*.json"))
_KEY = "fuzz-key"

LARGE = "[" + " " * LARGE_BYTES + "]"
"""A message that is decoded in a thread."""


class Local:
    """A server of this process as a target: its faults are errors that it logs."""

    def __init__(self, port: int, caplog: pytest.LogCaptureFixture) -> None:
        self.port = port
        self._caplog = caplog

    def faults(self) -> list[str]:
        found = [record.getMessage() for record in self._caplog.records if record.levelno >= logging.ERROR]
        self._caplog.clear()
        return found


@asynccontextmanager
async def _local(
    caplog: pytest.LogCaptureFixture, patience_s: float = 60
) -> AsyncIterator[tuple[Local, Client]]:
    async with serve(api_key=(_KEY,), compression=True) as server:
        target = Local(int(server.url.split(":")[2].split("/")[0]), caplog)
        client = Client(target, _KEY, patience_s=patience_s)
        try:
            yield target, client
        finally:
            await client.close()


async def test_found_inputs_show_no_fault_any_more(caplog: pytest.LogCaptureFixture) -> None:
    async with _local(caplog) as (target, client):
        for path in FOUND:
            faults = await client.run(inputs.read(path)) + target.faults()
            assert not faults, f"{path.name}: {faults}"


async def test_an_unexpected_exception_is_noticed_and_its_input_made_small(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = client_events.read

    def faulty(frame: bytes | str, *rest: object) -> object:
        if "reasoning_text" in str(frame):
            raise ValueError("planted")
        return read(frame, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(client_events, "read", faulty)
    fine, bad = '{"type":"response.processed"}', '{"type":"x","a":[1,{"b":"reasoning_text"}],"c":null}'
    given = Input("events", (Text(fine), Settle(), *(Text(fine),) * 3, Text(bad), Text(fine)), betas="a")
    async with _local(caplog) as (target, client):

        async def shows(smaller: Input) -> bool:
            return bool(await client.run(smaller, checked=False) + target.faults())

        assert not await shows(msgspec.structs.replace(given, steps=given.steps[:4]))
        faults = await client.run(given)
        assert "closed with an internal error" in faults[0]
        assert target.faults() == ["a connection failed unexpectedly"]
        found = await Minimiser(shows).minimise(given)
    assert found == Input("events", (Text('{"a":[{"b":"reasoning_text"}]}'),))


async def test_a_server_that_stops_to_answer_is_noticed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = RequestDecoder.frame

    async def slow(self: RequestDecoder, tenant: str, frame: bytes | str, *rest: object) -> object:
        if len(frame) == len(LARGE):
            await asyncio.Event().wait()
        return await decode(self, tenant, frame, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RequestDecoder, "frame", slow)
    async with _local(caplog, patience_s=0.2) as (_, client):
        assert await client.run(Input("json", (Text(LARGE),))) == ["neither closed nor answered a ping"]
        raw = Input("raw", (Bytes(frame(TEXT, LARGE.encode()).hex()), Bytes("8185")))
        assert await client.run(raw) == ["neither closed nor answered a ping"]


@pytest.mark.parametrize(
    "message",
    [
        b'{"type":"error","status":NaN}',
        b'{"type":"error"',
        b"[]",
        b'{"a":1}',
        b'{"type":"\xff"}',
        b'{"type":"error","status":500,"error":{"type":"server_error","code":"x",'
        b'"message":"The server had an error while processing your request.","param":null}}',
    ],
)
def test_a_message_that_is_not_valid_is_noticed(message: bytes) -> None:
    judge = Judge(checked=False)
    judge.see(message)
    assert len(judge.faults) == 1


def test_a_message_of_the_wrong_shape_is_noticed_where_all_is_checked() -> None:
    judge = Judge(checked=True)
    judge.see(b'{"type":"response.output_text.delta","delta":1}')
    assert "not a valid" in judge.faults[0]


def test_faults_in_a_log_are_noticed() -> None:
    assert faults_in("WARNING a client was slow\nTask exception was never retrieved\nfuture: …")
    assert faults_in("2026-01-01 ERROR slipring: a request failed unexpectedly\nTraceback …")
    assert not faults_in("2026-01-01 WARNING slipring: a client was slow")


def test_every_level_draws_inputs_that_files_can_keep(tmp_path) -> None:
    corpus = Corpus(seed=1)
    for given in valid_inputs():
        corpus.keep(given)
    for level in LEVELS:
        for _ in range(4):
            drawn = corpus.draw(level)
            inputs.write(tmp_path / "kept.json", drawn)
            assert inputs.read(tmp_path / "kept.json") == drawn
            assert drawn.frames > 0 or level == "events"


@pytest.mark.parametrize("size", [0, 125, 126, 65_536])
def test_the_missing_part_of_a_frame_is_known(size: int) -> None:
    whole = frame(PING, b"") + frame(TEXT, bytes(size))
    assert missing_bytes(whole) == 0
    assert missing_bytes(whole[:-1]) == 1
    assert 0 < missing_bytes(whole[:7]) <= len(whole) - 7
