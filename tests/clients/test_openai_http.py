"""The official Python SDK over HTTP: stored and background responses, their items, and conversations.

Each test runs with the sync and the async client. They connect through the relay, which checks every body
strictly against the SDK's types; only streams that a client leaves early come directly from the server.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from anyio.from_thread import BlockingPortal
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from slipring.core.limits import Limits
from tests.harness import WEATHER, PuppetEngine
from tests.pictures import PIXEL
from tests.relay import Served
from tests.test_compatibility import ITEM_SAMPLES

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
MODEL = "simulated"
PATCH = {"type": "custom", "name": "apply_patch", "description": "Change a file", "format": {"type": "text"}}
IMAGE = {"type": "input_image", "image_url": PIXEL}


# One interface for both clients ----------------------------------------------------------------------


class Sdk:
    """A client of the SDK. Methods are named by their path, as in ``responses.input_items.list``."""

    def __init__(self, client: OpenAI | AsyncOpenAI) -> None:
        self._client = client

    def _method(self, name: str) -> Callable[..., Any]:
        found: Any = self._client
        for part in name.split("."):
            found = getattr(found, part)
        return found

    async def call(self, name: str, *args: Any, **fields: Any) -> Any:
        if isinstance(self._client, OpenAI):
            return await asyncio.to_thread(self._method(name), *args, **fields)
        return await self._method(name)(*args, **fields)

    async def every(self, name: str, *args: Any, **fields: Any) -> list[Any]:
        """Return all items of a list, from all of its pages."""
        if isinstance(self._client, OpenAI):
            return await asyncio.to_thread(lambda: list(self._method(name)(*args, **fields)))
        return [item async for item in self._method(name)(*args, **fields)]

    async def events(
        self, name: str, *args: Any, most: int | None = None, **fields: Any
    ) -> tuple[list[Any], Any]:
        """Return the events of a stream, of which at most ``most`` are read, and the helper's final
        response."""
        if isinstance(self._client, OpenAI):
            return await asyncio.to_thread(self._read, name, args, most, fields)
        manager = self._method(name)(*args, **fields)
        events: list[Any] = []
        async with await manager if asyncio.iscoroutine(manager) else manager as stream:
            async for event in stream:
                events.append(event)
                if len(events) == most:
                    return events, None
            final = getattr(stream, "get_final_response", None)
            return events, await final() if final is not None else None

    def _read(self, name: str, args: Any, most: int | None, fields: Json) -> tuple[list[Any], Any]:
        events: list[Any] = []
        with self._method(name)(*args, **fields) as stream:
            for event in stream:
                events.append(event)
                if len(events) == most:
                    return events, None
            final = getattr(stream, "get_final_response", None)
            return events, final() if final is not None else None


Client = Callable[..., Any]


@pytest.fixture(params=[OpenAI, AsyncOpenAI], ids=["sync", "async"])
def sdk(request: pytest.FixtureRequest) -> Client:
    """``async with sdk(url) as client`` opens a sync or async client."""

    @asynccontextmanager
    async def open_client(url: str, key: str = "any") -> AsyncIterator[Sdk]:
        client = request.param(base_url=url, api_key=key, max_retries=0)
        try:
            yield Sdk(client)
        finally:
            closing = client.close()
            if closing is not None:
                await closing

    return open_client


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"sqlite:{tmp_path / 'slipring.db'}"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory" if request.param == "memory" else f"sqlite:{tmp_path / 'slipring.db'}"


def text_of(item: Any) -> str:
    return str(item.content[0].text)


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


async def ended(client: Sdk, response: Any) -> Any:
    """Poll a background response until it has ended; return it."""
    async with asyncio.timeout(300):
        while response.status in ("queued", "in_progress"):
            response = await client.call("responses.retrieve", response.id)
    return response


# Stored responses ------------------------------------------------------------------------------------


async def test_a_response_is_created_read_and_deleted(served: Served, sdk: Client, any_store: str) -> None:
    with served(store=any_store) as relay:
        async with sdk(relay.url) as client:
            made = await client.call(
                "responses.create", model=MODEL, input="hello", instructions="Be brief.", metadata={"a": "b"}
            )
            assert await client.call("responses.retrieve", made.id) == made
            assert await client.call("responses.delete", made.id) is None
            for name in ("responses.retrieve", "responses.delete", "responses.cancel"):
                with pytest.raises(openai.NotFoundError) as failure:
                    await client.call(name, made.id)
                assert (failure.value.code, failure.value.param) == ("not_found", "response_id")


async def test_input_items_are_listed_in_pages_in_both_orders(
    served: Served, sdk: Client, any_store: str
) -> None:
    with served(store=any_store) as relay:
        async with sdk(relay.url) as client:
            previous, texts = None, []
            for turn in range(3):
                asked = [user(f"{turn}.{number}") for number in range(10)]
                response = await client.call(
                    "responses.create", model=MODEL, input=asked, previous_response_id=previous
                )
                previous = response.id
                texts += [message["content"] for message in asked]
                texts += [response.output_text] if turn < 2 else []
            upwards = await client.every("responses.input_items.list", response.id, order="asc")
            assert [text_of(item) for item in upwards] == texts
            downwards = await client.every("responses.input_items.list", response.id, limit=7)
            assert downwards == upwards[::-1]
            requests = [exchange for exchange in relay.exchanges if exchange.method == "GET"]
            assert len(requests) == 2 + 5
            assert len({item.id for item in upwards}) == 32
            rest = await client.every(
                "responses.input_items.list", response.id, order="asc", after=upwards[9].id, limit=20
            )
            assert rest == upwards[10:]
            page = await client.call("responses.input_items.list", response.id, limit=1)
            assert (page.data, page.has_more) == (upwards[:-2:-1], True)


ITEMS = [
    user("a string"),
    {"role": "user", "content": [{"type": "input_text", "text": "parts"}, IMAGE]},
    {"role": "developer", "content": "Be brief."},
    {"role": "assistant", "content": "I was."},
    *ITEM_SAMPLES["function_call"],
    {"type": "function_call", "call_id": "call_2", "name": "get_weather", "arguments": "{}"},
    {
        "type": "function_call_output",
        "call_id": "call_2",
        "output": [{"type": "input_text", "text": "rain"}, IMAGE],
    },
    {"type": "custom_tool_call", "call_id": "call_3", "name": "apply_patch", "input": "+ hello"},
    {"type": "custom_tool_call_output", "call_id": "call_3", "output": "done"},
    *ITEM_SAMPLES["reasoning"],
    *ITEM_SAMPLES["additional_tools"],
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
]


async def test_every_kind_of_input_item_is_listed_with_the_sdks_types(
    served: Served, sdk: Client, store: str
) -> None:
    with served(store=store) as relay:
        async with sdk(relay.url) as client:
            made = await client.call("responses.create", model=MODEL, input=ITEMS)
            in_response = await client.every("responses.input_items.list", made.id, order="asc")
            conversation = await client.call("conversations.create", items=ITEMS)
            in_conversation = await client.every("conversations.items.list", conversation.id, order="asc")
            for listed in (in_response, in_conversation):
                assert [item.type for item in listed] == [item.get("type", "message") for item in ITEMS]
                assert all(item.id for item in listed)
            for item in in_conversation:
                one = await client.call(
                    "conversations.items.retrieve", item.id, conversation_id=conversation.id
                )
                assert one == item
            # Listed items can be sent again.
            again = await client.call(
                "responses.create", model=MODEL, input=[item.to_dict() for item in in_response]
            )
            assert again.status == "completed"


async def test_calls_of_the_model_are_listed_as_input_items(
    served: Served, sdk: Client, scripted: Callable[..., str]
) -> None:
    engine = scripted(
        [{"reasoning": "hm"}, {"custom_tool_call": {"name": "apply_patch", "input": "+ hello"}}],
        [{"function_call": {"name": "get_weather", "arguments": {"city": "Paris"}}}],
        [{"text": "done"}],
    )
    tools = [PATCH, WEATHER]
    with served(engine) as relay:
        async with sdk(relay.url) as client:
            conversation = await client.call("conversations.create")
            response, asked = None, [user("go")]
            for _ in range(3):
                response = await client.call(
                    "responses.create", model=MODEL, input=asked, tools=tools, conversation=conversation.id
                )
                asked = [
                    {"type": f"{item.type}_output", "call_id": item.call_id, "output": "ok"}
                    for item in response.output
                    if item.type.endswith("_call")
                ]
            assert response.output_text == "done"
            listed = await client.every("conversations.items.list", conversation.id, order="asc")
            assert [item.type for item in listed] == [
                "message",
                "reasoning",
                "custom_tool_call",
                "custom_tool_call_output",
                "function_call",
                "function_call_output",
                "message",
            ]
            before = await client.every("responses.input_items.list", response.id, order="asc")
            assert [item.id for item in before] == [item.id for item in listed][:-1]


# Background ------------------------------------------------------------------------------------------


async def test_a_background_response_is_polled(served: Served, sdk: Client, any_store: str) -> None:
    with served(store=any_store) as relay:
        async with sdk(relay.url) as client:
            begun = await client.call("responses.create", model=MODEL, input="hello", background=True)
            assert begun.status == "queued"
            done = await ended(client, begun)
            assert (done.status, done.background) == ("completed", True)
            assert done.output_text == "This is a simulated answer"
            more = await client.call(
                "responses.create", model=MODEL, input="more", previous_response_id=done.id
            )
            listed = await client.every("responses.input_items.list", more.id, order="asc")
            assert [text_of(item) for item in listed] == ["hello", done.output_text, "more"]


async def test_a_background_response_is_cancelled(
    served: Served, sdk: Client, portal: BlockingPortal, store: str
) -> None:
    engine = PuppetEngine()
    with served(engine, store=store) as relay:
        async with sdk(relay.url) as client:
            begun = await client.call("responses.create", model="puppet", input="hello", background=True)
            performance = await asyncio.to_thread(portal.call, engine.next)
            cancelled = await client.call("responses.cancel", begun.id)
            assert (cancelled.id, cancelled.status) == (begun.id, "cancelled")
            await asyncio.to_thread(portal.call, performance.stopped.wait)
            assert await client.call("responses.retrieve", begun.id) == cancelled


@pytest.mark.parametrize("most", [1, 4, 6])
async def test_an_interrupted_stream_is_resumed_without_gaps_or_repeats(
    served: Served, sdk: Client, portal: BlockingPortal, any_store: str, most: int
) -> None:
    engine = PuppetEngine()
    with served(engine, store=any_store) as relay:
        async with sdk(relay.server_url) as direct, sdk(relay.url) as client:
            leaving = asyncio.create_task(
                direct.events(
                    "responses.create",
                    model="puppet",
                    input="hello",
                    background=True,
                    stream=True,
                    most=most,
                )
            )
            performance = await asyncio.to_thread(portal.call, engine.next)
            portal.call(performance.say, "one ", "two ")
            seen, _ = await leaving
            response_id = seen[0].response.id
            resuming = asyncio.create_task(
                client.events(
                    "responses.retrieve",
                    response_id,
                    stream=True,
                    starting_after=seen[-1].sequence_number,
                )
            )
            portal.call(performance.say, "three")
            portal.call(performance.finish)
            rest, _ = await resuming
            events = seen + rest
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.completed"
            deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
            assert "".join(deltas) == events[-1].response.output_text == "one two three"
            assert await client.call("responses.retrieve", response_id) == events[-1].response
            again, _ = await client.events("responses.retrieve", response_id, stream=True)
            assert again == events


class Forecast(BaseModel):
    city: str
    degrees: float


async def test_the_stream_helper_resumes(served: Served, sdk: Client, store: str) -> None:
    with served(store=store) as relay:
        async with sdk(relay.server_url) as direct, sdk(relay.url) as client:
            seen, _ = await direct.events(
                "responses.stream",
                model=MODEL,
                input="forecast?",
                background=True,
                text_format=Forecast,
                most=5,
            )
            rest, final = await client.events(
                "responses.stream",
                response_id=seen[0].response.id,
                starting_after=seen[-1].sequence_number,
                text_format=Forecast,
            )
            numbers = [event.sequence_number for event in seen + rest]
            assert sorted(set(numbers)) == list(range(numbers[-1] + 1))
            assert rest[0].sequence_number == seen[-1].sequence_number + 1
            assert isinstance(final.output_parsed, Forecast)


# Conversations ---------------------------------------------------------------------------------------


async def test_a_conversation_is_created_read_updated_and_deleted(
    served: Served, sdk: Client, any_store: str
) -> None:
    with served(store=any_store) as relay:
        async with sdk(relay.url) as client:
            made = await client.call("conversations.create", items=[user("hello")], metadata={"a": "b"})
            assert await client.call("conversations.retrieve", made.id) == made
            changed = await client.call("conversations.update", made.id, metadata={"c": "d"})
            assert (changed.id, changed.metadata) == (made.id, {"c": "d"})
            deleted = await client.call("conversations.delete", made.id)
            assert (deleted.id, deleted.deleted) == (made.id, True)
            for name in ("conversations.retrieve", "conversations.delete"):
                with pytest.raises(openai.NotFoundError) as failure:
                    await client.call(name, made.id)
                assert (failure.value.code, failure.value.param) == ("not_found", "conversation")
            with pytest.raises(openai.NotFoundError):
                await client.every("conversations.items.list", made.id)


async def test_items_are_added_listed_in_pages_and_deleted(
    served: Served, sdk: Client, any_store: str
) -> None:
    with served(store=any_store) as relay:
        async with sdk(relay.url) as client:
            conversation = (await client.call("conversations.create")).id
            for start in range(0, 40, 20):
                added = await client.call(
                    "conversations.items.create",
                    conversation,
                    items=[user(str(number)) for number in range(start, start + 20)],
                )
                assert len(added.data) == 20
            upwards = await client.every("conversations.items.list", conversation, order="asc", limit=15)
            assert [text_of(item) for item in upwards] == [str(number) for number in range(40)]
            assert await client.every("conversations.items.list", conversation) == upwards[::-1]
            pages = [exchange for exchange in relay.exchanges if exchange.method == "GET"]
            assert len(pages) == 3 + 2
            rest = await client.every(
                "conversations.items.list", conversation, order="asc", after=upwards[37].id
            )
            assert rest == upwards[38:]
            gone = upwards[0].id
            left = await client.call("conversations.items.delete", gone, conversation_id=conversation)
            assert left.id == conversation
            with pytest.raises(openai.NotFoundError) as failure:
                await client.call("conversations.items.retrieve", gone, conversation_id=conversation)
            assert failure.value.param == "item_id"


@pytest.mark.parametrize("form", [str, lambda conversation: {"id": conversation}], ids=["id", "object"])
async def test_responses_continue_a_conversation(
    served: Served, sdk: Client, store: str, form: Callable[[str], Any]
) -> None:
    with served("simulated:tokens_per_s=0,tool_calls=1,output_tokens=5", store=store) as relay:
        async with sdk(relay.url) as client:
            conversation = (await client.call("conversations.create")).id
            fields = {"model": MODEL, "tools": [WEATHER], "conversation": form(conversation)}
            asked = await client.call("responses.create", input="weather?", **fields)
            assert asked.conversation.id == conversation
            (call,) = asked.output
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            answer = await client.call("responses.create", input=[output], **fields)
            thanked = await client.call("responses.parse", input="as data", text_format=Forecast, **fields)
            assert isinstance(thanked.output_parsed, Forecast)
            listed = await client.every("conversations.items.list", conversation, order="asc")
            kinds = ["message", "function_call", "function_call_output", "message", "message", "message"]
            assert [item.type for item in listed] == kinds
            assert text_of(listed[3]) == answer.output_text
            assert await client.call("responses.retrieve", answer.id) == answer
            seen = await client.every("responses.input_items.list", thanked.id, order="asc")
            assert [item.id for item in seen] == [item.id for item in listed][:-1]


async def test_a_background_response_continues_a_conversation(
    served: Served, sdk: Client, store: str
) -> None:
    with served(store=store) as relay:
        async with sdk(relay.url) as client:
            conversation = (await client.call("conversations.create")).id
            begun = await client.call(
                "responses.create", model=MODEL, input="hello", conversation=conversation, background=True
            )
            done = await ended(client, begun)
            listed = await client.every("conversations.items.list", conversation, order="asc")
            assert [text_of(item) for item in listed] == ["hello", done.output_text]


# Errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "kind", "param"),
    [
        ("responses.retrieve", {"response_id": "resp_nobody"}, openai.NotFoundError, "response_id"),
        ("responses.cancel", {"response_id": "resp_nobody"}, openai.NotFoundError, "response_id"),
        (
            "responses.retrieve",
            {"response_id": "resp_nobody", "stream": True},
            openai.NotFoundError,
            "response_id",
        ),
        (
            "responses.create",
            {"model": MODEL, "input": "x", "conversation": "conv_nobody"},
            openai.NotFoundError,
            "conversation",
        ),
        (
            "responses.create",
            {"model": MODEL, "input": [{"type": "item_reference", "id": "msg_nobody"}]},
            openai.BadRequestError,
            "input[0].id",
        ),
        (
            "responses.create",
            {"model": MODEL, "input": "x", "background": True, "store": False},
            openai.BadRequestError,
            "store",
        ),
        (
            "conversations.update",
            {"conversation_id": "conv_x", "metadata": {}},
            openai.NotFoundError,
            "conversation",
        ),
        ("conversations.create", {"metadata": {"a": 1}}, openai.BadRequestError, "metadata"),
        ("conversations.create", {"items": [user("x")] * 21}, openai.BadRequestError, "items"),
        (
            "conversations.items.create",
            {"conversation_id": "conv_x", "items": [{"type": "nonsense"}]},
            openai.BadRequestError,
            "items[0].type",
        ),
    ],
)
async def test_a_refused_request_raises_an_exception_that_names_the_field(
    served: Served,
    sdk: Client,
    name: str,
    fields: Json,
    kind: type[openai.APIStatusError],
    param: str,
) -> None:
    with served() as relay:
        async with sdk(relay.url) as client:
            with pytest.raises(kind) as failure:
                await client.call(name, **fields)
            assert failure.value.param is not None
            assert failure.value.param.startswith(param)
            assert failure.value.code
            assert failure.value.request_id


async def test_only_background_responses_can_be_cancelled_or_streamed_again(
    served: Served, sdk: Client
) -> None:
    with served() as relay:
        async with sdk(relay.url) as client:
            made = await client.call("responses.create", model=MODEL, input="hello")
            with pytest.raises(openai.BadRequestError, match="background"):
                await client.call("responses.cancel", made.id)
            with pytest.raises(openai.BadRequestError, match="background"):
                await client.call("responses.retrieve", made.id, stream=True)


async def test_a_wrong_key_raises_an_authentication_error_on_every_endpoint(
    served: Served, sdk: Client
) -> None:
    calls: list[tuple[str, Json]] = [
        ("responses.retrieve", {"response_id": "resp_x"}),
        ("responses.create", {"model": MODEL, "input": "x", "background": True}),
        ("conversations.create", {}),
        ("conversations.items.retrieve", {"item_id": "msg_x", "conversation_id": "conv_x"}),
    ]
    with served(api_key=("secret",)) as relay:
        async with sdk(relay.url, "guess") as client:
            for name, fields in calls:
                with pytest.raises(openai.AuthenticationError) as failure:
                    await client.call(name, **fields)
                assert failure.value.code == "invalid_api_key"


async def test_too_many_background_responses_raise_a_rate_limit_error(
    served: Served, sdk: Client, portal: BlockingPortal
) -> None:
    engine = PuppetEngine()
    with served(engine, limits=Limits(max_runs=1)) as relay:
        async with sdk(relay.url) as client:
            begun = await client.call("responses.create", model="puppet", input="x", background=True)
            with pytest.raises(openai.RateLimitError) as failure:
                await client.call("responses.create", model="puppet", input="x", background=True)
            assert failure.value.code == "rate_limit_exceeded"
            performance = await asyncio.to_thread(portal.call, engine.next)
            portal.call(performance.finish)
            assert (await ended(client, begun)).status == "completed"
