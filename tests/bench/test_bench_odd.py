"""Endpoints that are not as the API has it: told in a line, without losing what was measured."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipring.bench import command, results
from slipring.bench.exchange import Exchange, refusal
from slipring.bench.modes import MODES
from slipring.bench.options import Options, Outputs, Target
from slipring.bench.probes import Unmeasurable, first_model
from slipring.bench.run import Bench
from slipring.bench.sayings import Sayings
from slipring.bench.transports import Access
from tests.bench.faulty import Faulty, Json, running
from tests.bench.stage import Watching, measured, tiny, wrongs

Spoil = Callable[[Json], None]
KEY = "sk-SECRET-0123456789"


class Odd(Faulty):
    """Spoils every event once the probe is over."""

    def __init__(self, spoil: Spoil, mode: str) -> None:
        super().__init__()
        self._odd = spoil
        self._probes = 3 if mode == "rollout" else 2

    def events(self, frame: Json) -> list[Json]:
        events = json.loads(json.dumps(super().events(frame)))
        if len(self.requests) > self._probes:
            for event in events:
                self._odd(event)
        return events


def without_call_id(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        event["item"].pop("call_id", None)


def without_role(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        event["item"].pop("role", None)


def without_name(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        event["item"].pop("name", None)


def without_type(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        del event["item"]["type"]


def with_words_for_tokens(event: Json) -> None:
    if event["type"] == "response.completed":
        event["response"]["usage"] = {"input_tokens": "many"}


def with_a_list_for_usage(event: Json) -> None:
    if event["type"] == "response.completed":
        event["response"]["usage"] = []


def without_response_id(event: Json) -> None:
    if event["type"] == "response.completed":
        del event["response"]["id"]


def without_response(event: Json) -> None:
    if event["type"] == "response.completed":
        del event["response"]


def without_open_id(event: Json) -> None:
    if event["type"] == "response.done":
        del event["response_id"]


ODDITIES = {
    without_call_id: ("http-full", "websocket", "rollout"),
    without_role: ("http-full", "websocket"),
    without_name: ("http-full", "http-chained"),
    without_type: ("http-full", "websocket"),
    with_words_for_tokens: ("http-full", "websocket"),
    with_a_list_for_usage: ("http-full", "websocket"),
    without_response_id: ("http-chained", "websocket"),
    without_response: ("http-full", "websocket"),
    without_open_id: ("rollout",),
}


@pytest.mark.parametrize(
    ("spoil", "mode"), [(spoil, mode) for spoil, modes in ODDITIES.items() for mode in modes]
)
async def test_what_cannot_be_read_is_an_error_of_its_loop(spoil: Spoil, mode: str) -> None:
    async with running(Odd(spoil, mode)) as url:
        record = await measured(url, modes=(mode,))
    (loop,) = record.loops
    assert loop.error is not None
    assert "not as the API has it: " in loop.error


async def test_an_endpoint_that_is_odd_from_the_first_is_not_measured() -> None:
    faulty = Odd(with_words_for_tokens, "")
    faulty._probes = 0
    async with running(faulty) as url:
        with pytest.raises(Unmeasurable, match="websocket: not as the API has it: "):
            await measured(url, modes=("websocket",))


async def test_a_lane_that_is_no_text_concerns_all() -> None:
    def spoil(event: Json) -> None:
        event["stream_id"] = ["lane-0"]

    async with running(Odd(spoil, "")) as url:
        record = await measured(url, modes=("websocket-lanes",), lanes=1)
    assert "on the lane ['lane-0']" in wrongs(record)[0]


@pytest.mark.parametrize(
    ("header", "stages"),
    [
        ("a;dur=1.2.3", []),
        ("a;dur=1.2.3, b;dur=4", [{"b": 4.0}]),
        ("a;desc=x;dur=2.5 , b;dur=.", [{"a": 2.5}]),
        ("a;dur=9e999", []),
    ],
)
def test_a_header_that_cannot_be_read_says_nothing(header: str, stages: list[dict[str, float]]) -> None:
    exchange = Exchange()
    exchange.server_timing = header
    assert exchange.steps_ms == stages


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "No.", "code": "no"}}, "No. (no)"),
        ({"detail": "Too many requests"}, "Too many requests"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"error": "down"}, "down"),
        ({}, "the server gave no reason"),
    ],
)
def test_errors_of_servers_that_say_it_in_their_own_way(body: Json, said: str) -> None:
    assert str(refusal(body)) == said


def test_texts_are_kept_without_keys_and_escapes() -> None:
    tell = Sayings(KEY)
    assert tell(f"Incorrect key: Bearer {KEY}.") == "Incorrect key: Bearer …."
    assert "\x1b" not in tell("\x1b]0;owned\x07a\x1b[2Jb")
    assert Sayings("")("as it is") == "as it is"
    assert Sayings("x")("exit x") == "exit …"  # a key that is no secret is no reason to spoil words


class Echo(Faulty):
    """Repeats the key in its errors: at once where something is stored, else after a while."""

    async def post(self, request: web.Request) -> web.StreamResponse:
        is_stored = (await request.json())["store"]
        if is_stored or len(self.requests) > 3:
            said = f"Invalid token: {request.headers['Authorization']}\x1b[2J"
            return web.json_response({"error": {"message": said}}, status=401)
        return await super().post(request)


async def test_a_key_that_a_server_repeats_is_not_kept(tmp_path: Path) -> None:
    async with running(Echo()) as url:
        options = Options(
            target=Target(url=url, key=KEY, timeout_s=20), modes=("http-full", "http-chained"), repeats=1
        )
        bench = Bench(options, [tiny()], Watching())
        await bench.run()
    results.write(bench.record, tmp_path / "record.json")
    kept = (tmp_path / "record.json").read_text()
    assert "Bearer …" in bench.record.skipped["http-chained"]
    assert "Bearer …" in (bench.record.loops[0].error or "")
    assert KEY not in kept
    assert "\\u001b" not in kept


async def test_a_list_of_models_that_is_none() -> None:
    class Page(Faulty):
        async def models(self, request: web.Request) -> web.Response:
            return web.Response(text="<html>", content_type="text/html")

    async with running(Page()) as url:
        with pytest.raises(Unmeasurable, match="/models gave no list of models but text/html: name a model"):
            await first_model(url, Access(url, "", timeout_s=5))


async def test_a_key_that_is_the_name_of_the_model_changes_nothing_that_is_sent() -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        options = Options(target=Target(url=url, key="faulty", timeout_s=20), modes=("http-full",), repeats=1)
        await Bench(options, [tiny()], Watching()).run()
    assert {request["model"] for request in faulty.requests} == {"faulty"}


async def test_a_response_that_fails_is_an_error_and_no_wrong_answer() -> None:
    def spoil(event: Json) -> None:
        if event["type"] == "response.completed":
            event["type"] = "response.failed"
            event["response"] |= {"status": "failed", "error": {"message": "The engine is gone."}}

    async with running(Odd(spoil, "")) as url:
        record = await measured(url, modes=("websocket",))
    assert record.loops[0].error == "turn 1: the response failed: The engine is gone."
    assert wrongs(record) == []


async def test_whether_times_are_told_is_learnt_for_each_transport() -> None:
    """A server that tells its times over HTTP alone is not waited for on its sockets."""

    class Timed(Faulty):
        async def post(self, request: web.Request) -> web.StreamResponse:
            original = self.events
            timing: Json = {"type": "slipring.timing", "timing": {"stages": []}}

            def events(frame: Json) -> list[Json]:
                told = original(frame)
                return [*told, {**timing, "sequence_number": len(told)}]

            self.events = events  # type: ignore[method-assign]
            try:
                return await super().post(request)
            finally:
                self.events = original  # type: ignore[method-assign]

    async with running(Timed()) as url:
        record = await measured(url, modes=("http-full", "websocket"))
    assert wrongs(record) == []
    assert [loop.error for loop in record.loops] == [None, None]


async def test_the_terminal_event_has_a_time_of_its_own() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, modes=("http-full",))
    for turn in record.loops[0].turns:
        assert turn.terminal_ms is not None
        assert 0 < turn.terminal_ms <= turn.total_ms


def test_what_was_measured_outlives_what_ends_the_bench(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run(self: Bench) -> None:
        self.record.loops.append(results.Loop(workload="short", mode="http-full", repeat=0))
        raise RuntimeError("an end that nobody has foreseen")

    monkeypatch.setattr(Bench, "run", run)
    options = Options(target=Target(), workloads=("short",), outputs=Outputs(json=tmp_path / "record.json"))
    with pytest.raises(RuntimeError, match="nobody has foreseen"):
        command.bench(options)
    assert len(results.read(tmp_path / "record.json").loops) == 1


async def test_loops_of_two_runs_share_no_prefix() -> None:
    seen: list[set[str]] = []
    nonces = set()
    for _ in range(2):
        faulty = Faulty()
        async with running(faulty) as url:
            record = await measured(url, modes=("http-full", "websocket"), repeats=2)
        assert wrongs(record) == []
        nonces.add(record.nonce)
        seen.append({text for request in faulty.requests if (text := request.get("instructions"))})
    assert len(nonces) == 2
    assert "" not in nonces
    assert len(seen[0]) == len(seen[1]) == 4
    assert not seen[0] & seen[1]
    assert {text.partition("\n")[2] for text in seen[0]} == {text.partition("\n")[2] for text in seen[1]}


class Reasons(Faulty):
    """Reasons before each answer, and gives it in a form that can be sent back where it is asked to."""

    refuses = False

    def _step(self, made: Any, events: list[Json]) -> list[Json]:
        item = {"type": "reasoning", "id": f"rs_{self._number}", "summary": []}
        if "reasoning.encrypted_content" in made.create.get("include", []):
            item["encrypted_content"] = f"sealed {self._number}"
        place = {"output_index": len(made.output), "item": item}
        events += [{"type": f"response.output_item.{stage}", **place} for stage in ("added", "done")]
        made.output.append(item)
        return super()._step(made, events)

    def _context(self, create: Json) -> list[Json]:
        return [item for item in super()._context(create) if item.get("type") != "reasoning"]

    async def post(self, request: web.Request) -> web.StreamResponse:
        if self.refuses and "include" in await request.json():
            return web.json_response({"error": {"message": "Unknown parameter: 'include'."}}, status=400)
        return await super().post(request)


@pytest.mark.parametrize("refuses", [False, True])
async def test_reasoning_is_sent_back_where_the_endpoint_gives_it(refuses: bool) -> None:
    faulty = Reasons()
    faulty.refuses = refuses
    async with running(faulty) as url:
        record = await measured(url, modes=("http-full", "http-chained"))
    assert wrongs(record) == []
    assert record.skipped == {}
    full = [request for request in faulty.requests if not request["store"]][-3:]
    kinds = [[item["type"] for item in request["input"]] for request in full]
    turn = (
        ["function_call", "function_call_output"]
        if refuses
        else [*("reasoning", "function_call", "function_call_output")]
    )
    assert kinds == [["message"], ["message", *turn], ["message", *turn, *turn]]
    assert all("include" not in request for request in faulty.requests if request["store"])
    if not refuses:
        (sent,) = (item for item in full[1]["input"] if item["type"] == "reasoning")
        assert sent["encrypted_content"].startswith("sealed ")
        assert sent["id"].startswith("rs_")


def test_modes_say_whether_they_send_the_history() -> None:
    assert [mode.name for mode in MODES.values() if mode.described.sends_history] == [
        *("http-full", "http-full-newconn")
    ]
