"""The plugin as vLLM loads it: its routes, what it asks of the engine, and what it refuses.

vLLM is not installed here. An engine with the same interface stands for it; how the real one behaves is
tested by ``make test-vllm``.
"""

import asyncio
import json
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette

from slipring.engines.remote.replica_affinity import REPLICA_HEADER, answering_replica
from slipring.engines.vllm_plugin.replica_header import Replica
from slipring.engines.vllm_plugin.sessions import (
    PATH,
    EngineFacts,
    Limits,
    Sampling,
    Sessions,
    SessionsPlugin,
    Turn,
    TurnRefused,
    answered,
    limits_of,
)
from tests.server.raw import until


class StructuredOutputsParams(SimpleNamespace):
    """One constraint."""


class Logprob(NamedTuple):
    logprob: float
    decoded_token: str


MODELS = SimpleNamespace(
    base_model_paths=[SimpleNamespace(name="tiny"), SimpleNamespace(name="small")],
    lora_requests={"poet": "the adapter poet"},
)


@dataclass
class StreamingInput:
    prompt: dict[str, Any]
    sampling_params: Any


class SamplingParams:
    def __init__(self, **fields: Any) -> None:
        if fields["temperature"] < 0:
            raise ValueError("temperature must be non-negative")
        self.fields = fields


def model(**changes: Any) -> SimpleNamespace:
    layers = SimpleNamespace(layer_types=["full_attention"] * 2)
    known = {"max_model_len": 1000, "is_hybrid": False, "has_inner_state": False, "hf_text_config": layers}
    return SimpleNamespace(**{**known, **changes})


def config(**changes: Any) -> SimpleNamespace:
    """The part of ``VllmConfig`` that the plugin reads."""
    return SimpleNamespace(
        **{
            "parallel_config": SimpleNamespace(data_parallel_size=1, _api_process_count=1),
            "cache_config": SimpleNamespace(num_gpu_blocks=100, block_size=16),
            "model_config": model(),
            "scheduler_config": SimpleNamespace(max_num_seqs=4, scheduler_cls=None),
            "speculative_config": None,
            "kv_transfer_config": None,
            **changes,
        }
    )


@dataclass
class Engine:
    """Emits the number of each turn, so many times as the turn allows."""

    vllm_config: Any = field(default_factory=config)
    begun: list[tuple[str, int, Any]] = field(default_factory=list)
    read: list[StreamingInput] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False
    """Ends turns as vLLM does when a grammar cannot be compiled."""

    @property
    def model_config(self) -> Any:
        return SimpleNamespace(get_diff_sampling_param=lambda: {"temperature": 0.6, "top_k": 20})

    async def generate(
        self, inputs: AsyncIterator[StreamingInput], params: Any, id: str, *, priority: int, lora_request: Any
    ) -> AsyncGenerator[Any, None]:
        self.begun.append((id, priority, lora_request))
        try:
            async for each in inputs:
                self.read.append(each)
                if each.prompt["prompt_token_ids"] == [666]:
                    raise ValueError("too evil")
                fields = each.sampling_params.fields
                most = fields["max_tokens"]
                likely = {1: Logprob(-0.5, "one"), 2: Logprob(-0.1, "two"), 3: Logprob(-math.inf, "three")}
                for number in range(1, most + 1):
                    reason = "length" if number == most else None
                    said = SimpleNamespace(
                        token_ids=[len(self.read)],
                        text="",
                        logprobs=None if fields.get("logprobs") is None else [likely],
                        finish_reason="error" if self.fails and reason else reason,
                        stop_reason=None,
                    )
                    yield SimpleNamespace(outputs=[said], num_cached_tokens=3)
        finally:
            self.ended.set()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def kind(self) -> str:
        return self.headers["content-type"]

    def json(self) -> Any:
        return json.loads(self.text)


class Vllm:
    """An API process that has loaded the plugin, without a socket."""

    def __init__(self, app: Starlette, plugin: SessionsPlugin) -> None:
        self._app = app
        self.plugin = plugin

    @property
    def sessions(self) -> Sessions:
        return self.plugin._ready()

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", path, b"")

    async def post(self, path: str, body: object = None) -> Answer:
        return await self._ask("POST", path, json.dumps(body).encode())

    async def abandon(self, path: str, body: object, *, after: int) -> None:
        """POST, and leave while the server sends so many messages and one more: the head of the answer is the
        first."""
        await self._ask("POST", path, json.dumps(body).encode(), leaves_after=after)

    async def _ask(self, method: str, path: str, body: bytes, *, leaves_after: int | None = None) -> Answer:
        scope = {
            **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"},
            **{"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []},
        }
        received = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Any] = []
        left = asyncio.Event()

        async def receive() -> Any:
            if (message := next(received, None)) is None:
                await left.wait()
            return message or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if len(sent) == leaves_after:
                left.set()
                await asyncio.Event().wait()
            await asyncio.sleep(0)  # as with some middleware
            sent.append(message)

        await self._app(scope, receive, send)
        if leaves_after is not None:
            return Answer(0, {}, "")
        text = b"".join(message.get("body", b"") for message in sent).decode()
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, text)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def vllm(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Vllm:
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.engine": {},
        "vllm.engine.protocol": {"StreamingInput": StreamingInput},
        "vllm.sampling_params": {
            "SamplingParams": SamplingParams,
            "StructuredOutputsParams": StructuredOutputsParams,
            "RequestOutputKind": SimpleNamespace(DELTA="delta"),
        },
    }
    for name, named in contents.items():
        module = ModuleType(name)
        vars(module).update(named)
        monkeypatch.setitem(sys.modules, name, module)
    plugin, app = SessionsPlugin(), Starlette()
    plugin.attach_router(app)
    app.state.openai_serving_models = MODELS
    await plugin.init_state(engine, app.state, None)
    return Vllm(app, plugin)


ONE = {"max_tokens": 1}


def turn(**fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 2, **fields.pop("sampling", {})}
    return {"session": "s", "held": 0, "prompt": [1, 2, 3], "sampling": sampling, **fields}


async def test_every_answer_names_the_server_and_the_size_of_its_cache(vllm: Vllm) -> None:
    answers = [await vllm.get(PATH), await vllm.post(PATH, turn()), await vllm.get("/nowhere")]
    (value,) = {answer.headers["x-slipring-replica"] for answer in answers}
    name, _, tokens = value.partition(";")
    assert (len(name), tokens) == (8, "kv_tokens=1600")
    assert answering_replica({REPLICA_HEADER: value}, [REPLICA_HEADER]) == (name, 1600)


@pytest.mark.parametrize("parallel", [{"data_parallel_size": 2}, {"_api_process_count": 2}])
def test_a_server_with_several_caches_or_processes_has_no_name(parallel: dict[str, int]) -> None:
    replica = Replica()
    several = SimpleNamespace(**{"data_parallel_size": 1, "_api_process_count": 1, **parallel})
    replica.describe(config(parallel_config=several))
    assert not replica.value


async def test_turns_of_a_session_are_inputs_of_one_request(vllm: Vllm, engine: Engine) -> None:
    first = await vllm.post(PATH, turn(cache_salt="tenant", priority=3))
    # Three ids and the first of two that were emitted.
    second = await vllm.post(PATH, turn(held=4, prompt=[7], sampling={"temperature": 0.1}))
    assert engine.begun == [("slipring-s", 3, None)]
    assert [each.prompt["prompt_token_ids"] for each in engine.read] == [[1, 2, 3], [7]]
    assert engine.read[0].prompt["cache_salt"] == "tenant"
    assert engine.read[0].sampling_params.fields["temperature"] == 0.6
    assert engine.read[1].sampling_params.fields["temperature"] == 0.1
    assert engine.read[1].sampling_params.fields["top_k"] == 20
    assert first.kind.startswith("text/event-stream")
    assert second.text.count('"token_ids":[2]') == 2
    assert '"finish_reason":"length"' in second.text
    assert '"prompt_tokens":5' in second.text
    assert '"cached_tokens":4' in second.text
    assert second.text.endswith("data: [DONE]\n\n")
    assert (await vllm.post(f"{PATH}/s/end")).json() == {"ended": True}
    await engine.ended.wait()
    assert (await vllm.post(f"{PATH}/s/end")).json() == {"ended": False}


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        (turn(held=3), 404, "no such session"),
        (turn(prompt=[]), 400, "at least one id"),
        (turn(sampling={"best_of": 1}), 400, "unknown field `best_of`"),
        (turn(model="unknown"), 404, "There is no model unknown"),
        (turn(sampling={"temperature": -1.0}), 400, "temperature must be non-negative"),
        (turn(prompt=[1] * 601), 400, "no room"),
    ],
)
async def test_what_is_refused(
    vllm: Vllm, engine: Engine, asked: dict[str, Any], status: int, message: str
) -> None:
    answer = await vllm.post(PATH, asked)
    assert answer.status == status
    assert message in answer.json()["error"]["message"]
    assert not engine.begun


async def test_a_context_that_is_not_the_expected_one_is_left_alone(vllm: Vllm) -> None:
    await vllm.post(PATH, turn())
    for held in (0, 3, 5):
        assert (await vllm.post(PATH, turn(held=held))).status == 404
    assert (await vllm.post(PATH, turn(held=4))).status == 200


async def test_there_are_as_many_sessions_as_half_of_the_requests(vllm: Vllm) -> None:
    engine = {"vllm": "0.32.0", "drafts": "", "data_parallel_ranks": 1, "api_processes": 1}
    engine |= {"transfers_kv": False, "has_state": False, "scheduler": ""}
    engine |= {"kv_tokens": 1600, "most_requests": 4, "longest_request": 1000}
    limits = {"most_sessions": 2, "most_tokens": 600, "refused": "", "whole": ""}
    limits["engine"] = engine
    assert (await vllm.get(PATH)).json() == {
        **limits,
        **{"sessions": 0, "tokens": 0, "opened": 0, "continued": 0},
    }
    statuses = [(await vllm.post(PATH, turn(session=name))).status for name in "abc"]
    assert statuses == [200, 200, 400]
    assert (await vllm.get(PATH)).json() == {
        **limits,
        **{"sessions": 2, "tokens": 8, "opened": 2, "continued": 0},
    }
    await vllm.post(f"{PATH}/a/end")
    assert (await vllm.post(PATH, turn(session="c"))).status == 200


async def test_sessions_and_their_turns_are_counted(vllm: Vllm) -> None:
    assert (await vllm.post(PATH, turn())).status == 200
    assert (await vllm.post(PATH, turn(held=4))).status == 200
    assert (await vllm.post(PATH, turn(held=5))).status == 404
    assert (await vllm.post(PATH, turn(held=8))).status == 200
    await vllm.post(f"{PATH}/s/end")
    told = (await vllm.get(PATH)).json()
    assert (told["sessions"], told["opened"], told["continued"]) == (0, 1, 2)


async def test_sessions_hold_no_more_than_their_part_of_the_cache(vllm: Vllm) -> None:
    await vllm.post(PATH, turn(session="a", prompt=[1] * 400, sampling={"max_tokens": 1}))
    assert (await vllm.post(PATH, turn(session="b", prompt=[1] * 201))).status == 400
    assert (await vllm.post(PATH, turn(session="a", held=400, prompt=[1] * 201))).status == 400
    assert (await vllm.post(PATH, turn(session="a", held=400, prompt=[1] * 200, sampling=ONE))).status == 200


async def test_sessions_that_were_idle_for_long_make_room(
    vllm: Vllm, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        await vllm.post(PATH, turn(session=name))
    assert (await vllm.post(PATH, turn(session="c"))).status == 400
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SPARED_S", 0.0)
    assert (await vllm.post(PATH, turn(session="a", held=4))).status == 200
    assert (await vllm.post(PATH, turn(session="c"))).status == 200
    # The one that was idle for longest has ended; its client sends the next turn whole.
    assert (await vllm.post(PATH, turn(session="b", held=4))).status == 404
    assert (await vllm.post(PATH, turn(session="a", held=8))).status == 200


async def test_answers_that_take_more_room_than_there_is_end_the_longest_idle_sessions(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes nothing from an idle session, so other requests would wait for what it holds."""
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SETTLING_S", 0.0)
    for name in "ab":
        await vllm.post(PATH, turn(session=name, prompt=[1] * 300, sampling=ONE))
    vllm.sessions.limits = Limits(2, 602)
    assert (await vllm.post(PATH, turn(session="b", held=300, sampling={"max_tokens": 3}))).status == 400
    await vllm.post(PATH, turn(session="b", held=300, prompt=[1], sampling={"max_tokens": 3}))
    await until(lambda: list(vllm.sessions._open) == ["b"])
    assert vllm.sessions.held_tokens == 303
    # One that alone holds too much ends as well.
    await vllm.post(PATH, turn(session="b", held=303, prompt=[1] * 298, sampling={"max_tokens": 3}))
    await until(lambda: len(vllm.sessions) == 0)


async def test_a_client_that_ends_a_session_of_its_choice_in_time_loses_no_other(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SETTLING_S", 300.0)
    for name in "ab":
        await vllm.post(PATH, turn(session=name, prompt=[1] * 300, sampling=ONE))
    vllm.sessions.limits = Limits(2, 602)
    await vllm.post(PATH, turn(session="b", held=300, prompt=[1], sampling={"max_tokens": 3}))
    settling = vllm.sessions._settling
    assert settling is not None
    settling.cancel()
    await vllm.post(f"{PATH}/b/end")
    vllm.sessions._keep_limit()
    assert list(vllm.sessions._open) == ["a"]


async def test_a_session_does_not_end_for_its_own_room(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SPARED_S", 0.0)
    for name in "ab":
        await vllm.post(PATH, turn(session=name, prompt=[1] * 200, sampling=ONE))
    assert (await vllm.post(PATH, turn(session="a", held=200, prompt=[1] * 400, sampling=ONE))).status == 200
    assert set(vllm.sessions._open) == {"a"}


async def test_no_session_ends_where_that_would_not_make_enough_room(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SPARED_S", 0.0)
    for name in "ab":
        await vllm.post(PATH, turn(session=name, prompt=[1] * 200, sampling=ONE))
    # More than all sessions may hold, in a new session and in an open one.
    assert (await vllm.post(PATH, turn(session="c", prompt=[1] * 601))).status == 400
    assert (await vllm.post(PATH, turn(session="b", held=200, prompt=[1] * 401))).status == 400
    assert (await vllm.get(PATH)).json()["sessions"] == 2
    # One that was used just now stays, so the other one need not end either.
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SPARED_S", 60.0)
    vllm.sessions._open["a"].idle_since -= 100
    assert (await vllm.post(PATH, turn(session="c", prompt=[1] * 401))).status == 400
    assert (await vllm.get(PATH)).json()["sessions"] == 2
    # Room for a session is room for its ids, too: only the one that is needed ends.
    assert (await vllm.post(PATH, turn(session="c", prompt=[1] * 400, sampling=ONE))).status == 200
    assert set(vllm.sessions._open) == {"b", "c"}


async def test_a_failure_of_the_engine_ends_the_session(vllm: Vllm, engine: Engine) -> None:
    answer = await vllm.post(PATH, turn(prompt=[666]))
    assert '"error":{"message":"too evil","code":400}' in answer.text
    assert engine.ended.is_set()
    assert (await vllm.post(f"{PATH}/s/end")).json() == {"ended": False}


async def test_each_turn_has_its_own_settings(vllm: Vllm, engine: Engine) -> None:
    schema = {"structured_outputs": {"json": {"type": "integer"}}}
    await vllm.post(PATH, turn(sampling={**schema, "seed": 7}))
    biased = await vllm.post(PATH, turn(held=4, sampling={"logit_bias": {"5": 2.5}, "logprobs": 2}))
    plain = await vllm.post(PATH, turn(held=8))
    first, second, third = (each.sampling_params.fields for each in engine.read)
    assert first["structured_outputs"] == StructuredOutputsParams(json={"type": "integer"})
    assert first["seed"] == 7
    assert (second["logit_bias"], second["logprobs"]) == ({5: 2.5}, 2)
    assert not {"structured_outputs", "seed", "logit_bias", "logprobs"} & third.keys()
    sent = {"tokens": ["two"], "token_logprobs": [-0.1]}
    top = {"one": -0.5, "two": -0.1, "three": -9999.0}
    logprobs = json.dumps({**sent, "top_logprobs": [top]}, separators=(",", ":"))
    assert biased.text.count(f'"logprobs":{logprobs}') == 2
    assert plain.text.count('"logprobs":null') == 2


async def test_tokens_that_are_not_text_are_named_by_their_ids(vllm: Vllm) -> None:
    answer = await vllm.post(PATH, turn(sampling={"logprobs": 0, "detokenize": False, "max_tokens": 1}))
    assert '"tokens":["token_id:1"],"token_logprobs":[-0.5]' in answer.text


async def test_a_session_belongs_to_a_model(vllm: Vllm, engine: Engine) -> None:
    """The answer of another adapter would be that of another model."""
    await vllm.post(PATH, turn(model="poet"))
    await vllm.post(PATH, turn(session="t", model="small"))
    assert [adapter for _, _, adapter in engine.begun] == ["the adapter poet", None]
    assert (await vllm.post(PATH, turn(held=4, model="tiny"))).status == 404
    assert (await vllm.post(PATH, turn(held=4, model="poet"))).status == 200


async def test_a_turn_that_does_not_end_regularly_ends_the_session(vllm: Vllm, engine: Engine) -> None:
    engine.fails = True
    answer = await vllm.post(PATH, turn())
    assert '"error":{"message":"The engine has ended the turn: error.","code":500}' in answer.text
    assert engine.ended.is_set()
    assert (await vllm.post(PATH, turn(held=4))).status == 404


async def test_an_idle_session_ends(vllm: Vllm, engine: Engine) -> None:
    await vllm.post(PATH, turn(idle_s=0.0))
    await engine.ended.wait()
    assert (await vllm.post(PATH, turn(held=4))).status == 404


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"speculative_config": SimpleNamespace(method="eagle3")}, "speculative decoding (eagle3)"),
        ({"speculative_config": SimpleNamespace(method="ngram")}, "speculative decoding (ngram)"),
        (
            {"scheduler_config": SimpleNamespace(max_num_seqs=4, scheduler_cls="my.Scheduler")},
            "another scheduler (my.Scheduler)",
        ),
        (
            {"scheduler_config": SimpleNamespace(max_num_seqs=1, scheduler_cls=None)},
            "no more than one request at once",
        ),
        ({"kv_transfer_config": object()}, "KV transfer"),
        ({"parallel_config": SimpleNamespace(data_parallel_size=2)}, "data parallelism (2 ranks)"),
        (
            {"parallel_config": SimpleNamespace(data_parallel_size=1, _api_process_count=2)},
            "several API processes (2)",
        ),
        (
            {"model_config": model(is_hybrid=True, has_inner_state=True)},
            "a model with state beside its KV cache",
        ),
        (
            {"cache_config": SimpleNamespace(num_gpu_blocks=62, block_size=16)},
            "a KV cache that holds no more than one request",
        ),
    ],
)
def test_where_sessions_are_not_right_there_are_none(changes: dict[str, Any], why: str) -> None:
    limits = limits_of(EngineFacts.of(config(**changes), "0.32.0"))
    assert (limits.sessions, limits.tokens) == (0, 0)
    assert why in limits.refused


def test_where_fewer_requests_may_be_active_that_is_what_counts() -> None:
    """Sessions that wait for their next turn are among them."""
    scheduling = SimpleNamespace(max_num_seqs=64, max_num_active_seqs=8, scheduler_cls=None)
    assert limits_of(EngineFacts.of(config(scheduler_config=scheduling), "0.32.0")).sessions == 4


@pytest.mark.parametrize(
    ("kinds", "flags", "kv_tokens"),
    [
        (["sliding_attention"] * 4, {}, 1600),
        (["sliding_attention", "full_attention"] * 2, {}, 800),
        (["sliding_attention"] * 5 + ["full_attention"], {}, 256),
        (["sliding_attention", "full_attention"], {"disable_hybrid_kv_cache_manager": True}, 1600),
        (None, {}, 1600),
    ],
)
def test_kinds_of_layers_share_the_kv_cache(
    kinds: list[str] | None, flags: dict[str, Any], kv_tokens: int
) -> None:
    scheduling = SimpleNamespace(max_num_seqs=4, scheduler_cls=None, **flags)
    layers = SimpleNamespace() if kinds is None else SimpleNamespace(layer_types=kinds)
    facts = EngineFacts.of(
        config(model_config=model(hf_text_config=layers), scheduler_config=scheduling), "0.32.0"
    )
    assert facts.kv_tokens == kv_tokens


@pytest.mark.parametrize(
    ("version", "is_right"),
    [
        *(("0.25.1", False), ("0.26.0", True), ("0.27.1", False), ("0.31.0", False)),
        *(("0.32.0", True), ("0.33.1+cpu", True), ("1.0.0", True), ("dev", False)),
    ],
)
def test_versions_that_lose_track_of_sessions_have_none(version: str, is_right: bool) -> None:
    limits = limits_of(EngineFacts.of(config(), version))
    assert (limits.sessions > 0) is is_right
    assert (f"vLLM {version}" in limits.refused) is not is_right


async def test_settings_of_a_turn_are_refused_where_they_were_not_tested() -> None:
    limits = limits_of(EngineFacts.of(config(), "0.33.0"))
    assert limits.sessions
    sessions = Sessions(limits, lambda turn, inputs: None)
    own = Sampling(max_tokens=1, seed=1, logprobs=0)
    with pytest.raises(TurnRefused, match=r"its own seed, logprobs: vLLM 0\.33\.0 was not tested"):
        sessions.begin(Turn("s", 0, [1], own), lambda turn: None)
    sessions.begin(Turn("s", 0, [1], Sampling(max_tokens=1)), lambda turn: None)


def test_vllm_finds_the_plugin() -> None:
    (found,) = entry_points(group="vllm.endpoint_plugins", name="slipring_sessions")
    plugin = found.load()()
    assert (plugin.name, plugin.required_tasks) == ("slipring_sessions", ("generate",))


async def test_a_session_that_is_ended_while_its_turn_runs_frees_the_engine_with_the_turn() -> None:
    rest, closed = asyncio.Event(), asyncio.Event()

    async def generate(turn: Turn, inputs: AsyncIterator[Turn]) -> AsyncGenerator[Any, None]:
        try:
            async for _ in inputs:
                await rest.wait()
                said = SimpleNamespace(
                    token_ids=[1], text="", logprobs=None, finish_reason="length", stop_reason=None
                )
                yield SimpleNamespace(outputs=[said], num_cached_tokens=0)
        finally:
            closed.set()

    sessions = Sessions(Limits(1, 100), generate)
    turn = Turn("s", 0, [1], Sampling(1))
    session = sessions.begin(turn, lambda turn: turn)
    events = answered(sessions, session, turn)
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert sessions.end("s")
    rest.set()
    said = [await first, *[event async for event in events]]
    assert said[-1] == b"data: [DONE]\n\n"
    assert closed.is_set()
    assert not len(sessions)


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_a_session_ends_with_the_request_of_a_client_that_leaves(
    vllm: Vllm, engine: Engine, sent: int
) -> None:
    """Before the head of the answer, before its first event, while an event is being sent."""
    await vllm.abandon(PATH, turn(sampling={"max_tokens": 5}), after=sent)
    assert (await vllm.get(PATH)).json()["sessions"] == 0
    if sent:
        assert engine.ended.is_set()
    assert (await vllm.post(PATH, turn())).status == 200


async def test_a_turn_may_begin_before_the_request_for_the_last_has_returned(
    vllm: Vllm, engine: Engine
) -> None:
    """Its client has the whole answer, and sends the next turn at once."""
    sessions = vllm.sessions
    asked = Turn("s", 0, [1, 2, 3], Sampling(2))
    session = sessions.begin(asked, vllm.plugin._make_input)
    events = answered(sessions, session, asked)
    while await anext(events) != b"data: [DONE]\n\n":
        continue
    again = Turn("s", 4, [7], Sampling(2))
    assert sessions.begin(again, vllm.plugin._make_input) is session
    await events.aclose()
    sessions.abandon(session, 1)
    assert len(sessions) == 1
    told = [event async for event in answered(sessions, session, again)]
    assert told[-1] == b"data: [DONE]\n\n"
    assert not engine.ended.is_set()


async def test_a_session_that_is_ended_before_its_turn_is_answered_is_not_run() -> None:
    closed = asyncio.Event()

    async def generate(turn: Turn, inputs: AsyncIterator[Turn]) -> AsyncGenerator[Any, None]:
        try:
            async for _ in inputs:
                said = SimpleNamespace(token_ids=[1], text="", finish_reason=None, stop_reason=None)
                yield SimpleNamespace(outputs=[said], num_cached_tokens=0)
        finally:
            closed.set()

    sessions = Sessions(Limits(1, 100), generate)
    turn = Turn("s", 0, [1], Sampling(1))
    session = sessions.begin(turn, lambda turn: turn)
    events = answered(sessions, session, turn)
    assert sessions.end("s")
    # The generator is closed by a task that has not run yet; the answer leaves it alone.
    assert b"has ended" in b"".join([event async for event in events])
    again = sessions.begin(turn, lambda turn: turn)
    sessions.abandon(session, 1)  # not the new one with its name
    assert len(sessions) == 1
    sessions.abandon(again, 1)
    assert not len(sessions)
