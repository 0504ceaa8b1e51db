"""The turn log: one line for every turn, in a full form and in a short one."""

import asyncio
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import ServerError
from slipring.core.limits import Limits
from slipring.protocol.turn_report import Stage, TokenCounts, TurnReport
from slipring.server.access.auth import Caller
from slipring.server.observation.ended_turns import EndedTurn, Origin
from slipring.server.observation.turn_log import TerminalFormatter, TurnLine, set_up_logging, write
from slipring.stores.keys import Key, Token
from tests.api import Api
from tests.harness import PuppetEngine, serve
from tests.server.issuing import issue, serve_stored
from tests.server.raw import gone, open_raw

KEY = Key(id="key_1", tenant="acme", digest=b"digest", created_at=1)
REPORT = TurnReport(
    status="completed",
    request_bytes=72,
    stages=[
        Stage("decode", 0.0, 0.5),
        Stage("prefill", 10.0, 200.0),
        Stage("generate", 210.0, 1200.0),
        Stage("client", 1410.0, 5000.0),
        Stage("prefill", 6410.0, 40.0),
    ],
    total_ms=6450.0,
    response_id="resp_1",
    model="m",
    tokens=TokenCounts(rendered=134, input=1234, cached=1100, output=85),
)


def ended(report: TurnReport, caller: Caller, lane: str | None = None) -> EndedTurn:
    return EndedTurn(report, lane, caller, Origin("websocket", 1), started_at=10.0)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The lines of the turn log, in their full form."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger("slipring.turns"), Collect()
    caplog.set_level(logging.INFO, logger="slipring.turns")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def fields(line: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in line.split(" "))


def test_the_full_form_has_every_field() -> None:
    line = fields(str(TurnLine(ended(REPORT, Caller("acme", KEY), lane="lane-1"))))
    assert line == {
        "response": "resp_1",
        "tenant": "acme",
        "key": "key_1",
        "lane": "lane-1",
        "status": "completed",
        "model": "m",
        "bytes": "72",
        "rendered": "134",
        "input": "1234",
        "cached": "1100",
        "output": "85",
        "decode_ms": "0.5",
        "prefill_ms": "240.0",
        "generate_ms": "1200.0",
        "client_ms": "5000.0",
        "total_ms": "6450.0",
    }


def test_it_names_the_checks_and_counts_what_was_withheld() -> None:
    report = TurnReport("completed", 9, [], 1.0, flagged_by=("a", "b"), withheld={"a": 2, "b": 1})
    line = fields(str(TurnLine(ended(report, Caller("acme")))))
    assert (line["flagged"], line["withheld"]) == ("a,b", "3")


def test_the_short_form_has_human_units() -> None:
    line = TurnLine(ended(REPORT, Caller("acme", KEY))).short()
    assert line == (
        "m completed: 1,234 in (1,100 cached), 85 out, first token 210 ms, total 6.5 s,"
        " tenant acme, key key_1"
    )


def test_the_short_form_of_a_guests_refused_turn() -> None:
    report = TurnReport("refused", 9, [], 0.25, error_code="model_not_found")
    line = TurnLine(ended(report, Caller("default", is_guest=True))).short()
    assert line == "turn refused (model_not_found): total 0.2 ms"


@pytest.mark.parametrize(
    ("total_ms", "shown"),
    [(3.21, "3.2 ms"), (850.4, "850 ms"), (12_340.0, "12.3 s"), (125_000.0, "2 min 5 s")],
)
def test_durations(total_ms: float, shown: str) -> None:
    report = TurnReport("completed", 9, [], total_ms)
    assert TurnLine(ended(report, Caller("t"))).short().startswith(f"turn completed: total {shown}")


def test_a_tenants_name_cannot_forge_a_field() -> None:
    line = str(TurnLine(ended(REPORT, Caller("a\nb status=x"))))
    assert "\n" not in line
    assert fields(line)["status"] == "completed"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_lines_are_short_on_a_terminal_only(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", stream)
    root.handlers = []
    try:
        set_up_logging("info")
        write(ended(REPORT, Caller("acme")))
        logging.getLogger("slipring").info("something else")
    finally:
        root.handlers, root.level = before, level
    turn, other = stream.getvalue().splitlines()
    if stream.isatty():
        assert turn[8:].startswith(" m completed: 1,234 in")
    else:
        assert " INFO slipring.turns response=resp_1 tenant=acme status=completed" in turn
    assert other.endswith(" INFO slipring something else")


def test_the_terminal_formatter_leaves_other_records_as_configured() -> None:
    record = logging.LogRecord("slipring", logging.INFO, __file__, 1, "hello %s", ("you",), None)
    assert TerminalFormatter("%(name)s: %(message)s").format(record) == "slipring: hello you"


async def test_completed_and_refused_turns_have_a_line_without_content(lines: list[str]) -> None:
    async with serve() as server, server.connect() as socket:
        response = await socket.response(input="my secret", stream_id="lane-1")
        await socket.error(input="my secret", model="nobody", previous_response_id=None)
        await socket.error(input="my secret", previous_response_id="x\nresponse=forged y")
    done, refused, forged = lines
    assert done.startswith(
        f"response={response['id']} tenant=default lane=lane-1 status=completed model=simulated bytes="
    )
    assert "prefill_ms=" in done
    assert "status=refused error=model_not_found" in refused
    assert "secret" not in done + refused + forged
    assert "previous='x\\nresponse=forged_y' status=refused" in forged


async def test_a_line_names_the_tenant_and_the_stored_key_but_not_its_secret(
    tmp_path: Path, lines: list[str]
) -> None:
    async with serve_stored(tmp_path) as server:
        key = await issue(server, "acme")
        token = Token.parse(key)
        assert token is not None
        await server.post(key=key, input="hello")
        async with server.connect(key=key) as socket:
            await socket.response(input="hello")
    assert [(fields(line)["tenant"], fields(line)["key"]) for line in lines] == [("acme", token.id)] * 2
    assert all(key not in line for line in lines)


async def test_a_failed_turn_has_a_line(lines: list[str]) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        await socket.create(input="hello")
        performance = await engine.next()
        performance.say("hi")
        performance.fail(ServerError("broken"))
        await socket.until("response.failed")
    (line,) = lines
    assert fields(line)["status"] == "failed"
    assert fields(line)["error"] == "server_error"


async def test_turns_of_a_client_that_disconnects_have_a_line_each(lines: list[str]) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, open_raw(server) as raw:
        await raw.create(input="runs")
        await raw.create(input="waits for the first")
        await engine.next()
        await raw.receive_event()
        raw.drop()
        await gone(server)
    running, queued = map(fields, lines)
    assert (running["status"], queued["status"]) == ("cancelled", "cancelled")
    assert running["model"] == "puppet"
    assert running["response"].startswith("resp_")


async def test_a_post_of_a_client_that_disconnects_has_a_line(lines: list[str]) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        post = asyncio.create_task(server.post(input="hello"))
        await engine.next()
        post.cancel()
        await gone(server)
    assert [fields(line)["status"] for line in lines] == ["cancelled"]


@pytest.mark.parametrize("path", ["/responses", "/responses/compact", "/responses/input_tokens"])
async def test_a_post_that_cannot_be_decoded_has_a_line(path: str, lines: list[str]) -> None:
    async with serve() as server:
        status, _ = await Api(server).call("POST", path, json={"input": "x", "model": 3})
        assert status == 400
    (line,) = lines
    assert fields(line)["status"] == "refused"
    assert fields(line)["error"] == "invalid_type"


async def test_a_create_that_finds_no_room_in_its_queue_has_a_line(lines: list[str]) -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(max_queued=0)) as server, server.connect() as socket:
        await socket.create(input="runs")
        performance = await engine.next()
        await socket.until("response.created")
        await socket.create(input="has to wait")
        assert (await socket.until("error"))[-1]["error"]["code"] == "rate_limit_exceeded"
        performance.finish()
        await socket.until("response.completed")
    assert [fields(line)["status"] for line in lines] == ["refused", "completed"]
    assert fields(lines[0])["error"] == "rate_limit_exceeded"


async def test_a_cancelled_background_run_has_a_line(lines: list[str]) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        begun: dict[str, Any] = await api.begin(input="hello")
        await engine.next()
        await api.cancel(begun["id"])
    assert [fields(line)["status"] for line in lines] == ["cancelled"]
