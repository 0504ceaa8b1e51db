"""The official Python SDK, unchanged: ``responses.connect()`` and plain HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

import openai
import pytest
from anyio.from_thread import BlockingPortal
from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from pydantic import BaseModel
from websockets.exceptions import InvalidStatus

from tests.harness import TERMINAL, WEATHER, PuppetEngine
from tests.relay import Relay, Served

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
MODEL = "simulated"
PATCH = {"type": "custom", "name": "apply_patch", "description": "Change a file", "format": {"type": "text"}}


# One interface for both clients, so that every WebSocket test runs with both -------------------------


class Conversation(Protocol):
    """An open connection of the SDK."""

    async def create(self, **fields: Any) -> None:
        """Send a ``response.create`` with exactly these fields."""

    async def steer(self, **fields: Any) -> None:
        """Send a ``response.steer``."""

    async def read(self, *types: str) -> list[Any]:
        """Iterate over the connection up to the first event of these types."""


class Blocking:
    """The connection of ``OpenAI``, each call in a thread."""

    def __init__(self, connection: ResponsesConnection) -> None:
        self._connection = connection

    async def create(self, **fields: Any) -> None:
        await asyncio.to_thread(self._connection.response.create, **fields)

    async def steer(self, **fields: Any) -> None:
        await asyncio.to_thread(self._connection.response.steer, **fields)

    async def read(self, *types: str) -> list[Any]:
        return await asyncio.to_thread(self._read, types)

    def _read(self, types: tuple[str, ...]) -> list[Any]:
        events = []
        for event in self._connection:
            events.append(event)
            if event.type in types:
                return events
        raise AssertionError(f"the connection ended after {[event.type for event in events]}")


class Awaiting:
    """The connection of ``AsyncOpenAI``."""

    def __init__(self, connection: AsyncResponsesConnection) -> None:
        self._connection = connection

    async def create(self, **fields: Any) -> None:
        await self._connection.response.create(**fields)

    async def steer(self, **fields: Any) -> None:
        await self._connection.response.steer(**fields)

    async def read(self, *types: str) -> list[Any]:
        events = []
        async for event in self._connection:
            events.append(event)
            if event.type in types:
                return events
        raise AssertionError(f"the connection ended after {[event.type for event in events]}")


@asynccontextmanager
async def connect_blocking(relay: Relay) -> AsyncIterator[Conversation]:
    with OpenAI(base_url=relay.url, api_key="any") as client:
        manager = client.responses.connect()
        connection = await asyncio.to_thread(manager.enter)
        try:
            yield Blocking(connection)
        finally:
            await asyncio.to_thread(connection.close)


@asynccontextmanager
async def connect_awaiting(relay: Relay) -> AsyncIterator[Conversation]:
    async with (
        AsyncOpenAI(base_url=relay.url, api_key="any") as client,
        client.responses.connect() as connection,
    ):
        yield Awaiting(connection)


Connect = Callable[[Relay], AbstractAsyncContextManager[Conversation]]


@pytest.fixture(params=[connect_blocking, connect_awaiting], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return request.param


async def finish(conversation: Conversation, **fields: Any) -> Any:
    """Create a response; return the object of its terminal event."""
    await conversation.create(**fields)
    return (await conversation.read(*TERMINAL, "error"))[-1].response


@contextmanager
def client_of(relay: Relay, key: str = "any") -> Iterator[OpenAI]:
    with OpenAI(base_url=relay.url, api_key=key, max_retries=0) as client:
        yield client


# The socket ------------------------------------------------------------------------------------------


async def test_a_tool_loop_over_the_socket_sends_only_new_items(served: Served, connect: Connect) -> None:
    with served("simulated:tokens_per_s=0,tool_calls=1") as relay:
        async with connect(relay) as conversation:
            asked = await finish(
                conversation, model=MODEL, input="weather in Paris?", tools=[WEATHER], store=False
            )
            (call,) = asked.output
            assert (call.type, call.name) == ("function_call", "get_weather")
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            answered = await finish(
                conversation,
                model=MODEL,
                previous_response_id=asked.id,
                input=[output],
                tools=[WEATHER],
                store=False,
            )
            assert answered.output_text.startswith("This is a simulated answer")
            assert answered.previous_response_id == asked.id
            assert answered.usage.input_tokens_details.cached_tokens > 0
        assert relay.socket.sent[1] == {
            "type": "response.create",
            "model": MODEL,
            "previous_response_id": asked.id,
            "input": [output],
            "tools": [WEATHER],
            "store": False,
        }


async def test_the_deltas_add_up_to_the_answer(served: Served, connect: Connect) -> None:
    with served() as relay:
        async with connect(relay) as conversation:
            await conversation.create(model=MODEL, input="hello")
            events = await conversation.read(*TERMINAL)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == 5
    assert "".join(deltas) == events[-1].response.output_text


async def test_a_warmup_is_continued_with_empty_input(
    served: Served, connect: Connect, scripted: Callable[..., str]
) -> None:
    with served(scripted([{"text": "warm and quick"}])) as relay:
        async with connect(relay) as conversation:
            await conversation.create(
                model=MODEL, input="a long preamble", generate=False, tools=[WEATHER], store=False
            )
            warmup = await conversation.read(*TERMINAL)
            assert [event.type for event in warmup] == ["response.created", "response.completed"]
            warmed = warmup[-1].response
            assert warmed.output == []
            answered = await finish(
                conversation,
                model=MODEL,
                input=[],
                previous_response_id=warmed.id,
                tools=[WEATHER],
                store=False,
            )
            assert answered.output_text == "warm and quick"
            assert answered.usage.input_tokens == warmed.usage.input_tokens


async def test_two_lanes_run_concurrently(served: Served, portal: BlockingPortal, connect: Connect) -> None:
    engine = PuppetEngine()
    with served(engine) as relay:
        async with connect(relay) as conversation:
            await conversation.create(model="puppet", input="a?", stream_id="a")
            a = portal.call(engine.next)
            await conversation.create(model="puppet", input="b?", stream_id="b")
            b = portal.call(engine.next)
            spoken = []
            for performance, word in ((a, "one"), (b, "uno"), (a, " two"), (b, " due")):
                portal.call(performance.say, word)
                event = (await conversation.read("response.output_text.delta"))[-1]
                spoken.append((event.stream_id, event.delta))
            assert spoken == [("a", "one"), ("b", "uno"), ("a", " two"), ("b", " due")]
            ended = []
            for performance in (b, a):
                portal.call(performance.finish)
                event = (await conversation.read(*TERMINAL))[-1]
                ended.append((event.stream_id, event.response.output_text))
            assert ended == [("b", "uno due"), ("a", "one two")]


async def test_a_fork_continues_on_another_lane(
    served: Served, connect: Connect, scripted: Callable[..., str]
) -> None:
    engine = scripted([{"text": "trunk"}], [{"text": "first branch"}], [{"text": "second branch"}])
    with served(engine) as relay:
        async with connect(relay) as conversation:
            parent = await finish(conversation, model=MODEL, input="a story", stream_id="main", store=False)
            for lane, text in (("main", "first branch"), ("side", "second branch")):
                child = await finish(
                    conversation,
                    model=MODEL,
                    input="go on",
                    previous_response_id=parent.id,
                    stream_id=lane,
                    store=False,
                )
                assert child.output_text == text
                assert child.previous_response_id == parent.id
        lanes = [e["stream_id"] for e in relay.socket.received if e["type"] == "response.completed"]
        assert lanes == ["main", "main", "side"]


async def test_a_response_in_progress_is_steered(
    served: Served, portal: BlockingPortal, connect: Connect
) -> None:
    engine = PuppetEngine()
    with served(engine) as relay:
        async with connect(relay) as conversation:
            await conversation.create(model="puppet", input="a story", stream_id="a")
            job = portal.call(engine.next)
            portal.call(job.say, "Once")
            events = await conversation.read("response.output_text.delta")
            target = events[0].response.id
            await conversation.steer(previous_response_id=target, input="shorter")
            accepted = (await conversation.read("response.steer.accepted"))[-1]
            assert (accepted.stream_id, accepted.steer.previous_response_id) == ("a", target)
            portal.call(job.say, " upon a time.")
            ended = (await conversation.read(*TERMINAL))[-1].response
            assert (ended.status, ended.incomplete_details.reason) == ("incomplete", "steered")
            assert ended.output_text == "Once upon a time."
            portal.call(portal.call(engine.next).finish)
            follows = (await conversation.read(*TERMINAL))[-1].response
            assert (follows.status, follows.previous_response_id) == ("completed", target)
            late = {"type": "message", "role": "user", "content": "too late"}
            await conversation.steer(previous_response_id=target, input=[late])
            failed = (await conversation.read("response.steer.failed"))[-1]
            assert failed.error.code == "response_not_active"
            assert failed.steer.input[0].content == "too late"


async def test_an_error_is_an_event_and_the_socket_stays_usable(served: Served, connect: Connect) -> None:
    with served() as relay:
        async with connect(relay) as conversation:
            await conversation.create(model=MODEL, input="hello", previous_response_id="resp_unknown")
            (event,) = await conversation.read("error")
            assert event.type == "error"
            assert event.status == 400
            assert event.error.code == "previous_response_not_found"
            assert event.error.param == "previous_response_id"
            assert "resp_unknown" in event.error.message
            assert (await finish(conversation, model=MODEL, input="hello")).status == "completed"
        assert len(relay.sockets) == 1


async def test_an_engine_failure_is_a_failed_response(
    served: Served, connect: Connect, scripted: Callable[..., str]
) -> None:
    with served(scripted([{"text": "well"}, {"error": {"message": "out of memory"}}])) as relay:
        async with connect(relay) as conversation:
            failed = await finish(conversation, model=MODEL, input="hello")
            assert failed.status == "failed"
            assert failed.error.message == "out of memory"


async def test_an_answer_that_is_too_long_is_incomplete(served: Served, connect: Connect) -> None:
    with served() as relay:
        async with connect(relay) as conversation:
            cut = await finish(conversation, model=MODEL, input="hello", max_output_tokens=3)
            assert cut.status == "incomplete"
            assert cut.incomplete_details.reason == "max_output_tokens"
            assert cut.output_text == "This is a"


async def test_creates_on_one_lane_are_answered_in_their_order(served: Served, connect: Connect) -> None:
    with served() as relay:
        async with connect(relay) as conversation:
            for number in range(3):
                await conversation.create(model=MODEL, input="hello", metadata={"number": str(number)})
            ended = [(await conversation.read(*TERMINAL))[-1] for _ in range(3)]
            assert [event.response.metadata["number"] for event in ended] == ["0", "1", "2"]


async def test_a_custom_tool_is_called_with_free_text(
    served: Served, connect: Connect, scripted: Callable[..., str]
) -> None:
    patch = "*** Begin Patch\n+ hello\n*** End Patch"
    engine = scripted([{"custom_tool_call": {"name": "apply_patch", "input": patch}}], [{"text": "patched"}])
    with served(engine) as relay:
        async with connect(relay) as conversation:
            await conversation.create(model=MODEL, input="add hello", tools=[PATCH], store=False)
            events = await conversation.read(*TERMINAL)
            deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
            assert "".join(deltas) == patch
            (call,) = events[-1].response.output
            assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", patch)
            answered = await finish(
                conversation,
                model=MODEL,
                previous_response_id=events[-1].response.id,
                input=[{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}],
                tools=[PATCH],
                store=False,
            )
            assert answered.output_text == "patched"


async def test_the_sdk_sends_a_key_but_no_beta_header_and_no_compression(
    served: Served, connect: Connect
) -> None:
    with served(api_key=("any",)) as relay:
        async with connect(relay) as conversation:
            assert (await finish(conversation, model=MODEL, input="hello")).status == "completed"
        headers = relay.socket.headers
        assert headers["Authorization"] == "Bearer any"
        assert "OpenAI-Beta" not in headers
        assert not relay.socket.deflate


async def test_a_socket_with_a_wrong_key_is_refused(served: Served, connect: Connect) -> None:
    with served(api_key=("secret",)) as relay:
        with pytest.raises(InvalidStatus) as refusal:
            async with connect(relay):
                pass
        assert refusal.value.response.status_code == 401


# HTTP ------------------------------------------------------------------------------------------------


def test_a_plain_create_returns_the_response(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        response = client.responses.create(model=MODEL, input="hello", instructions="Be brief.")
        assert response.status == "completed"
        assert response.instructions == "Be brief."
        assert response.output_text == "This is a simulated answer"
        assert response.usage is not None
        assert response.usage.output_tokens == 5


def test_a_streamed_create_ends_with_the_response(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        with client.responses.create(model=MODEL, input="hello", stream=True) as stream:
            events = list(stream)
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert events[-1].type == "response.completed"
        assert "".join(deltas) == events[-1].response.output_text


async def test_the_async_client_creates_and_streams(served: Served) -> None:
    with served() as relay:
        async with AsyncOpenAI(base_url=relay.url, api_key="any") as client:
            plain = await client.responses.create(model=MODEL, input="hello")
            async with await client.responses.create(model=MODEL, input="hello", stream=True) as stream:
                events = [event async for event in stream]
        assert events[-1].response.output_text == plain.output_text


def test_stored_responses_are_continued_over_http(served: Served) -> None:
    with served("simulated:tokens_per_s=0,tool_calls=1") as relay, client_of(relay) as client:
        asked = client.responses.create(model=MODEL, input="weather?", tools=[WEATHER])
        (call,) = asked.output
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        answered = client.responses.create(
            model=MODEL,
            previous_response_id=asked.id,
            input=[result],
            tools=[WEATHER],
        )
        assert answered.previous_response_id == asked.id
        assert answered.output_text


async def test_a_response_of_the_socket_is_continued_over_http(served: Served, connect: Connect) -> None:
    with served() as relay:
        async with connect(relay) as conversation:
            stored = await finish(conversation, model=MODEL, input="hello", store=True)
        with client_of(relay) as client:
            answered = client.responses.create(model=MODEL, previous_response_id=stored.id, input="go on")
        assert answered.previous_response_id == stored.id


def test_the_stream_helper_accumulates_text(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        with client.responses.stream(model=MODEL, input="hello") as stream:
            snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert snapshots[0] == "This"
        assert snapshots[-1] == final.output_text == "This is a simulated answer"


def test_the_stream_helper_accumulates_arguments(served: Served) -> None:
    with served("simulated:tokens_per_s=0,output_tokens=4") as relay, client_of(relay) as client:
        with client.responses.stream(model=MODEL, input="weather?", tools=[WEATHER]) as stream:
            snapshots = [e.snapshot for e in stream if e.type == "response.function_call_arguments.delta"]
            (call,) = stream.get_final_response().output
        assert len(snapshots) == 4
        assert snapshots[-1] == call.arguments


class Forecast(BaseModel):
    city: str
    degrees: float
    hours: list[int]


def test_structured_output_is_parsed_into_a_model(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        response = client.responses.parse(model=MODEL, input="forecast?", text_format=Forecast)
        assert isinstance(response.output_parsed, Forecast)
        assert relay.exchanges[0].body["text"]["format"]["type"] == "json_schema"


def test_structured_output_is_parsed_from_a_stream(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        with client.responses.stream(model=MODEL, input="forecast?", text_format=Forecast) as stream:
            stream.until_done()
            response = stream.get_final_response()
        assert isinstance(response.output_parsed, Forecast)


def test_a_refusal_has_no_parsed_output(served: Served, scripted: Callable[..., str]) -> None:
    with served(scripted([{"refusal": "I would rather not."}])) as relay, client_of(relay) as client:
        response = client.responses.parse(model=MODEL, input="forecast?", text_format=Forecast)
        assert response.output_parsed is None
        message: Any = response.output[0]
        assert message.content[0].refusal == "I would rather not."


def test_models_are_listed_and_retrieved(served: Served) -> None:
    with served(model=("house-model",)) as relay, client_of(relay) as client:
        listed = list(client.models.list())
        assert [model.id for model in listed] == ["house-model"]
        retrieved = client.models.retrieve("house-model")
        assert retrieved == listed[0]
        assert set(retrieved.to_dict()) == {"id", "object", "created", "owned_by", "input_modalities"}
        assert client.responses.create(model="house-model", input="hello").model == "house-model"


# HTTP errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_wrong_value_is_a_bad_request_that_names_the_field(served: Served, stream: bool) -> None:
    with served() as relay, client_of(relay) as client:
        with pytest.raises(openai.BadRequestError) as failure:
            client.responses.create(model=MODEL, input="hello", temperature=3, stream=stream)
        assert failure.value.param == "temperature"
        assert failure.value.request_id is not None


def test_an_unknown_parent_is_a_bad_request(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        with pytest.raises(openai.BadRequestError) as failure:
            client.responses.create(model=MODEL, input="hello", previous_response_id="resp_unknown")
        assert failure.value.code == "previous_response_not_found"
        assert failure.value.param == "previous_response_id"


def test_an_unknown_model_is_not_found(served: Served) -> None:
    with served() as relay, client_of(relay) as client:
        with pytest.raises(openai.NotFoundError) as failure:
            client.responses.create(model="gpt-none", input="hello")
        assert failure.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-none")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_wrong_key_fails_to_authenticate(served: Served, stream: bool) -> None:
    with served(api_key=("secret",)) as relay, client_of(relay, key="guess") as client:
        with pytest.raises(openai.AuthenticationError) as failure:
            client.responses.create(model=MODEL, input="hello", stream=stream)
        assert failure.value.code == "invalid_api_key"


def test_an_engine_failure_raises_an_internal_server_error(
    served: Served, scripted: Callable[..., str]
) -> None:
    broken = [{"error": {"message": "out of memory"}}]
    with (
        served(scripted(broken)) as relay,
        client_of(relay) as client,
        pytest.raises(openai.InternalServerError, match="out of memory"),
    ):
        client.responses.create(model=MODEL, input="hello")


def test_a_busy_engine_raises_a_rate_limit_error(served: Served, scripted: Callable[..., str]) -> None:
    busy = [{"error": {"message": "too busy", "status": 429}}]
    with (
        served(scripted(busy)) as relay,
        client_of(relay) as client,
        pytest.raises(openai.RateLimitError, match="too busy"),
    ):
        client.responses.create(model=MODEL, input="hello")


def test_a_stream_of_a_failing_engine_ends_with_a_failed_response(
    served: Served, scripted: Callable[..., str]
) -> None:
    engine = scripted([{"text": "well"}, {"error": {"message": "out of memory"}}])
    with served(engine) as relay, client_of(relay) as client:
        with client.responses.create(model=MODEL, input="hello", stream=True) as stream:
            last = list(stream)[-1]
        assert last.type == "response.failed"
        assert last.response.error.message == "out of memory"
