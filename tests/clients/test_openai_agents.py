"""The OpenAI Agents SDK, unchanged: its tool loop over the socket and over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from openai import AsyncOpenAI, NotFoundError
from pydantic import BaseModel

from slipring.config.tables import CheckEntry
from tests import late
from tests.harness import FAST, PuppetEngine
from tests.relay import Served

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
TWO_CALLS = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=2"
ANSWER = "This is a simulated answer"


@pytest.fixture(autouse=True)
def _no_traces() -> None:
    late.agents.set_tracing_disabled(True)  # otherwise it tries to send traces to OpenAI


class Weather:
    """A tool that counts its calls, and an agent that has it."""

    def __init__(self) -> None:
        self.calls = 0

    def agent(self, **settings: Any) -> "late.agents.Agent[None]":
        @late.agents.function_tool
        def get_weather(city: str) -> str:
            """Weather of a city."""
            self.calls += 1
            return f"sunny, asked {self.calls} times"

        return late.agents.Agent(
            name="weather",
            model="simulated",
            instructions="Use the tool.",
            tools=[get_weather],
            model_settings=late.agents.ModelSettings(**settings),
        )


@asynccontextmanager
async def running(url: str, *, websocket: bool) -> AsyncIterator["late.agents.RunConfig"]:
    """Return a configuration for runs against this URL, over WebSocket or HTTP."""
    async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        provider = late.agents.OpenAIProvider(openai_client=client, use_responses_websocket=websocket)
        async with aclosing(provider):
            yield late.agents.RunConfig(model_provider=provider)


def require_chained(requests: list[Json], responses: list[Json]) -> None:
    """Require that every request except the first continues the previous response and has only tool
    outputs."""
    assert "previous_response_id" not in requests[0]
    for request, response in zip(requests[1:], responses, strict=False):
        assert request["previous_response_id"] == response["id"]
        calls = [item["call_id"] for item in response["output"]]
        assert [(item["type"], item["call_id"]) for item in request["input"]] == [
            ("function_call_output", call_id) for call_id in calls
        ]


@pytest.mark.parametrize("store", [None, False], ids=["stored", "not stored"])
async def test_a_tool_loop_runs_on_one_socket(served: Served, store: bool | None) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        provider = late.agents.OpenAIProvider(base_url=relay.url, api_key="any", use_responses_websocket=True)
        async with aclosing(provider):
            result = await late.agents.Runner.run(
                weather.agent(store=store),
                "weather in Paris?",
                run_config=late.agents.RunConfig(model_provider=provider),
                auto_previous_response_id=True,
            )
        assert result.final_output == ANSWER
        assert weather.calls == 2
        assert len(relay.socket.sent) == 3
        require_chained(relay.socket.sent, relay.socket.responses)
        assert relay.exchanges == []


async def test_a_tool_loop_runs_on_a_compressed_socket(served: Served) -> None:
    with served(TWO_CALLS, compression=True) as relay:
        # Also without the relay, which decompresses and compresses messages again with another
        # implementation.
        for url in (relay.url, relay.server_url):
            weather = Weather()
            async with running(url, websocket=True) as config:
                result = await late.agents.Runner.run(
                    weather.agent(), "weather?", run_config=config, auto_previous_response_id=True
                )
            assert result.final_output == ANSWER
            assert weather.calls == 2
        assert relay.socket.deflate


async def test_a_streamed_run_yields_every_event(served: Served) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        async with running(relay.url, websocket=True) as config:
            result = late.agents.Runner.run_streamed(
                weather.agent(), "weather in Paris?", run_config=config, auto_previous_response_id=True
            )
            raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        assert result.final_output == ANSWER
        assert weather.calls == 2
        assert [event.type for event in raw] == [event["type"] for event in relay.socket.received]
        require_chained(relay.socket.sent, relay.socket.responses)


async def test_parallel_calls_are_answered_together(served: Served) -> None:
    weather = Weather()
    with served(f"{TWO_CALLS},parallel_calls=2") as relay:
        async with running(relay.url, websocket=True) as config:
            result = await late.agents.Runner.run(
                weather.agent(parallel_tool_calls=True),
                "weather in Paris and Rome?",
                run_config=config,
                auto_previous_response_id=True,
            )
        assert result.final_output == ANSWER
        assert [len(frame["input"]) for frame in relay.socket.sent[1:]] == [2]
        require_chained(relay.socket.sent, relay.socket.responses)


async def test_a_loop_that_sends_its_whole_history_works_too(served: Served) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        async with running(relay.url, websocket=True) as config:
            result = await late.agents.Runner.run(weather.agent(), "weather in Paris?", run_config=config)
        assert result.final_output == ANSWER
        assert [len(frame["input"]) for frame in relay.socket.sent] == [1, 3, 5]
        assert not any("previous_response_id" in frame for frame in relay.socket.sent)
        cached = [r["usage"]["input_tokens_details"]["cached_tokens"] for r in relay.socket.responses]
        assert cached == sorted(set(cached))


async def test_the_runs_of_a_session_share_a_socket(served: Served) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        async with late.agents.responses_websocket_session(base_url=relay.url, api_key="any") as session:
            first = await session.run(weather.agent(), "weather?", auto_previous_response_id=True)
            second = await session.run(
                weather.agent(), "and tomorrow?", previous_response_id=first.last_response_id
            )
        assert second.final_output == ANSWER
        frame = relay.socket.sent[-1]
        assert frame["previous_response_id"] == first.last_response_id
        assert frame["input"] == [{"content": "and tomorrow?", "role": "user"}]


async def test_a_handoff_changes_instructions_within_the_chain(
    served: Served, scripted: Callable[..., str]
) -> None:
    expert = late.agents.Agent(name="expert", model="simulated", instructions="You know it.")
    clerk = late.agents.Agent(
        name="clerk", model="simulated", instructions="Ask the expert.", handoffs=[expert]
    )
    engine = scripted([{"function_call": {"name": "transfer_to_expert"}}], [{"text": "forty-two"}])
    with served(engine) as relay:
        async with running(relay.url, websocket=True) as config:
            result = await late.agents.Runner.run(
                clerk, "the answer?", run_config=config, auto_previous_response_id=True
            )
        assert result.final_output == "forty-two"
        assert result.last_agent is expert
        instructions = [response["instructions"] for response in relay.socket.responses]
        assert instructions == ["Ask the expert.", "You know it."]


@pytest.mark.parametrize("websocket", [True, False], ids=["socket", "http"])
async def test_reasoning_is_sent_back_within_a_whole_history(
    served: Served, scripted: Callable[..., str], websocket: bool
) -> None:
    call = {"function_call": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    engine = scripted(
        [{"reasoning_summary": "A look first."}, {"reasoning": "deep inside"}, {"text": "Let me see."}, call],
        [{"text": "Sunny."}],
    )
    with served(engine) as relay:
        async with running(relay.url, websocket=websocket) as config:
            result = await late.agents.Runner.run(
                Weather().agent(store=False), "weather in Paris?", run_config=config
            )
        assert result.final_output == "Sunny."
        requests = relay.socket.sent if websocket else [exchange.body for exchange in relay.exchanges]
        returned = [item.get("type") for item in requests[1]["input"]]
        assert returned == [None, "reasoning", "message", "function_call", "function_call_output"]


async def test_a_cancelled_run_stops_the_engine(served: Served, portal: BlockingPortal) -> None:
    engine = PuppetEngine()
    with served(engine, abandoned=True) as relay:
        async with running(relay.url, websocket=True) as config:
            agent = late.agents.Agent[None](name="talker", model="puppet")
            result = late.agents.Runner.run_streamed(agent, "talk", run_config=config)
            performance = await asyncio.to_thread(portal.call, engine.next)
            portal.call(performance.say, "well")
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    result.cancel()
            await asyncio.to_thread(portal.call, performance.stopped.wait)


class Forecast(BaseModel):
    city: str
    degrees: int


async def test_structured_output_becomes_an_instance(served: Served) -> None:
    agent = late.agents.Agent(name="forecaster", model="simulated", output_type=Forecast)
    with served() as relay:
        async with running(relay.url, websocket=True) as config:
            result = await late.agents.Runner.run(agent, "forecast?", run_config=config)
        assert isinstance(result.final_output, Forecast)


async def test_a_refused_request_raises_with_its_code(served: Served) -> None:
    with served() as relay:
        async with running(relay.url, websocket=True) as config:
            with pytest.raises(late.agents.models.openai_responses.ResponsesWebSocketError) as failure:
                await late.agents.Runner.run(
                    Weather().agent(), "hello", run_config=config, previous_response_id="resp_unknown"
                )
        assert failure.value.code == "previous_response_not_found"
        assert "resp_unknown" in str(failure.value)


async def test_a_tool_loop_runs_over_http(served: Served) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        async with running(relay.url, websocket=False) as config:
            result = await late.agents.Runner.run(
                weather.agent(), "weather in Paris?", run_config=config, auto_previous_response_id=True
            )
        assert result.final_output == ANSWER
        assert weather.calls == 2
        require_chained([e.body for e in relay.exchanges], [e.answer for e in relay.exchanges])
        assert relay.sockets == []


async def test_a_streamed_run_works_over_http(served: Served) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        async with running(relay.url, websocket=False) as config:
            result = late.agents.Runner.run_streamed(
                weather.agent(), "weather in Paris?", run_config=config, auto_previous_response_id=True
            )
            raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    assert result.final_output == ANSWER
    assert [event.type for event in raw].count("response.completed") == 3
    responses = [exchange.answer[-1]["response"] for exchange in relay.exchanges]
    require_chained([exchange.body for exchange in relay.exchanges], responses)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_session_is_stored_in_a_conversation(served: Served, tmp_path: Path, store: str) -> None:
    weather = Weather()
    where = store if store == "memory" else f"sqlite:{tmp_path / 'slipring.db'}"
    with served(TWO_CALLS, store=where) as relay:
        async with (
            AsyncOpenAI(base_url=relay.url, api_key="any", max_retries=0) as client,
            running(relay.url, websocket=False) as config,
        ):
            session = late.agents.OpenAIConversationsSession(openai_client=client)
            first = await late.agents.Runner.run(
                weather.agent(), "weather?", run_config=config, session=session
            )
            items = await session.get_items()
            kinds = ["message", *["function_call", "function_call_output"] * 2, "message"]
            assert [item["type"] for item in items] == kinds
            again = await late.agents.Runner.run(
                weather.agent(), "tomorrow?", run_config=config, session=session
            )
            assert (first.final_output, again.final_output) == (ANSWER, ANSWER)
            # Each run after the first gets the items of the conversation.
            creates = [e.body for e in relay.exchanges if e.path.endswith("/responses")]
            assert len(creates[3]["input"]) == len(kinds) + 1
            last = await session.pop_item()
            assert last is not None
            assert (await session.get_items(limit=1))[0] != last
            await session.clear_session()
            with pytest.raises(NotFoundError):
                await client.conversations.retrieve(relay.exchanges[-1].path.rpartition("/")[2])


async def test_runs_continue_a_conversation_of_the_server(served: Served) -> None:
    weather = Weather()
    with served(TWO_CALLS) as relay:
        async with (
            AsyncOpenAI(base_url=relay.url, api_key="any", max_retries=0) as client,
            running(relay.url, websocket=False) as config,
        ):
            conversation = await client.conversations.create()
            for question in ("weather?", "tomorrow?"):
                result = await late.agents.Runner.run(
                    weather.agent(), question, run_config=config, conversation_id=conversation.id
                )
                assert result.final_output == ANSWER
            creates = [e.body for e in relay.exchanges if e.path.endswith("/responses")]
            assert {body["conversation"] for body in creates} == {conversation.id}
            assert all(len(body["input"]) == 1 for body in creates)
            listed = [
                item.type async for item in client.conversations.items.list(conversation.id, order="asc")
            ]
            assert listed.count("function_call") == listed.count("function_call_output") == weather.calls
            assert listed.count("message") == 4


def words_check(word: str, subject: Any, **fields: Any) -> CheckEntry:
    settings = json.dumps({"patterns": {"word": word}})
    fields = {"action": "block", "mode": "hold", "on_error": "closed", **fields}
    return CheckEntry("words", "patterns", settings, subjects=(subject,), **fields)


@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "http"])
@pytest.mark.parametrize(
    ("word", "subject", "before"),
    [("Paris", "message", False), ("Paris", "message", True), ("simulated", "answer", False)],
    ids=["input", "input-before-the-engine", "output"],
)
async def test_a_turn_that_a_safety_check_blocks_is_sent_once(
    served: Served, websocket: bool, word: str, subject: Any, before: bool
) -> None:
    check = words_check(word, subject, before=before)
    with served(f"{FAST},tool_calls=0", checks=(check,)) as relay:
        async with running(relay.url, websocket=websocket) as config:
            with pytest.raises(Exception, match="safety check 'words'"):
                await late.agents.Runner.run(Weather().agent(), "weather in Paris?", run_config=config)
        assert len(relay.socket.sent if websocket else relay.exchanges) == 1


@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "http"])
@pytest.mark.parametrize("ending", ["incomplete", "refusal"])
async def test_an_answer_that_a_safety_check_cuts_is_asked_for_once(
    served: Served, websocket: bool, ending: Any
) -> None:
    check = words_check("simulated", "answer", action="cut", ending=ending)
    with served(f"{FAST},tool_calls=0", checks=(check,)) as relay:
        async with running(relay.url, websocket=websocket) as config:
            error = {"incomplete": "content_filter", "refusal": "Model refused"}[ending]
            with pytest.raises(late.agents.AgentsException, match=error):
                await late.agents.Runner.run(Weather().agent(), "weather?", run_config=config)
        assert len(relay.socket.sent if websocket else relay.exchanges) == 1
