"""The cases of Open Responses' compliance suite, by their ids, against a real server.

Written from what the suite (openresponses.org, `bin/compliance-test.ts`) sends and requires: a valid response
object, valid events, the status, the kind of an item, the code of an error. All of them with the simulated
engine; with the embedded model all but what that model cannot do: it has no eyes, and calls if it likes.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import wire
from tests.engines.tokens.test_token_server import running
from tests.harness import WEATHER, Running, serve
from tests.model import ServeModel

Json = dict[str, Any]
Case = Callable[[Running], Awaitable[None]]
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5E"
    "rkJggg=="
)
MISSING = "previous_response_not_found"
CALM: Json = {"temperature": 0}
"""So that a small model answers the same in every run."""


def said(role: str, content: Any, **fields: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **fields}


def require_completed(response: Json) -> None:
    assert (response["status"], bool(response["output"])) == ("completed", True)


async def model_of(server: Running) -> str:
    headers = {"Authorization": "Bearer test-key"}
    async with server.http.get(f"{server.url}/models", headers=headers) as answer:
        name = (await answer.json())["data"][0]["id"]
    assert isinstance(name, str)
    return name


async def answered(server: Running, *items: Json, **fields: Any) -> Json:
    """The response to a plain POST."""
    status, response = await server.post(input=list(items), **CALM, **fields)
    assert status == 200, response
    require_completed(response)
    return response


async def basic_response(server: Running) -> None:
    await answered(server, said("user", "Greet me in three words."))


async def assistant_phase(server: Running) -> None:
    await answered(
        server,
        said("assistant", "I look the number up.", phase="commentary"),
        said("assistant", "It is four.", phase="final_answer"),
        said("user", "Which number is it? Say only that."),
    )


async def response_output_phase_schema(server: Running) -> None:
    """The suite sends nothing: messages of an answer may have phases."""
    response = await answered(server, said("user", "Hello."))
    message = next(item for item in response["output"] if item["type"] == "message")
    for phase in ("commentary", "final_answer"):
        wire.check_response({**response, "output": [{**message, "phase": phase}]})


async def streaming_response(server: Running) -> None:
    events = await server.stream(input=[said("user", "Count to five.")], **CALM)
    assert events[-1]["type"] == "response.completed"
    require_completed(events[-1]["response"])


async def websocket_response(server: Running) -> None:
    async with server.connect() as socket:
        require_completed(await socket.response(**CALM, input=[said("user", "Count to three.")]))


async def websocket_sequential_responses(server: Running) -> None:
    async with server.connect() as socket:
        for word in ("first", "second"):
            require_completed(await socket.response(**CALM, store=False, input=f"Reply with exactly: {word}"))


async def websocket_continuation(server: Running) -> None:
    async with server.connect() as socket:
        first = await socket.response(**CALM, store=False, input="The code word is cobalt. Say OK.")
        second = await socket.response(
            **CALM, store=False, previous_response_id=first["id"], input="What is the code word?"
        )
        require_completed(second)
        assert second["previous_response_id"] == first["id"]


async def websocket_reconnect_store_false_recovery(server: Running) -> None:
    async with server.connect() as socket:
        first = await socket.response(**CALM, store=False, input="The code word is copper. Say OK.")
    async with server.connect() as socket:
        error = await socket.error(store=False, previous_response_id=first["id"], input="Go on.")
        assert error["error"]["code"] == MISSING
        require_completed(await socket.response(**CALM, store=False, input=[said("user", "Begin again.")]))


async def websocket_previous_response_not_found(server: Running) -> None:
    async with server.connect() as socket:
        error = await socket.error(store=False, previous_response_id="resp_never_made", input="Go on.")
        assert error["error"]["code"] == MISSING


async def websocket_failed_continuation_evicts_cache(server: Running) -> None:
    output = {"type": "function_call_output", "call_id": "call_never_made", "output": "Nothing called this."}
    async with server.connect() as socket:
        first = await socket.response(**CALM, store=False, input="The code word is ember. Say OK.")
        parent = {"store": False, "previous_response_id": first["id"]}
        assert (await socket.error(**parent, input=[output]))["error"]["code"] != MISSING
        assert (await socket.error(**parent, input="Go on."))["error"]["code"] == MISSING


async def websocket_compact_new_chain(server: Running) -> None:
    status, compacted = await server.compact(
        model=await model_of(server),
        input=[
            said("user", [{"type": "input_text", "text": "Remember the code word: slate."}]),
            said("assistant", [{"type": "output_text", "text": "OK."}]),
            said("user", [{"type": "input_text", "text": "Compress this for later."}]),
        ],
    )
    assert status == 200, compacted
    async with server.connect() as socket:
        again = [*compacted["output"], said("user", "Continue from here. Reply with exactly: compacted")]
        require_completed(await socket.response(**CALM, store=False, input=again, tools=[]))


async def system_prompt(server: Running) -> None:
    await answered(server, said("system", "You are a pirate and speak like one."), said("user", "Say hello."))


async def tool_calling(server: Running) -> None:
    response = await answered(server, said("user", "How is the weather in San Francisco?"), tools=[WEATHER])
    assert "function_call" in [item["type"] for item in response["output"]]


async def image_input(server: Running) -> None:
    picture = {"type": "input_image", "image_url": PICTURE}
    await answered(server, said("user", [{"type": "input_text", "text": "What is this?"}, picture]))


async def multi_turn(server: Running) -> None:
    await answered(
        server,
        said("user", "I am Alice."),
        said("assistant", "Hello Alice. What can I do for you?"),
        said("user", "What is my name?"),
    )


async def compact_response(server: Running) -> None:
    status, compacted = await server.compact(
        model=await model_of(server),
        prompt_cache_key="compact-test",
        input=[
            said("user", "We start on Tuesday and tell support first."),
            said("assistant", "On Tuesday, then; support hears of it before."),
        ],
    )
    assert (status, compacted["object"]) == (200, "response.compaction")
    assert "compaction" in [item["type"] for item in compacted["output"]]


async def compact_missing_model(server: Running) -> None:
    status, _ = await server.compact(input=[said("user", "Compact this.")])
    assert status in (400, 422)


CASES: dict[str, Case] = {
    case.__name__.replace("_", "-"): case
    for case in (
        *(basic_response, assistant_phase, response_output_phase_schema, streaming_response),
        *(websocket_response, websocket_sequential_responses, websocket_continuation),
        *(websocket_reconnect_store_false_recovery, websocket_previous_response_not_found),
        *(websocket_failed_continuation_evicts_cache, websocket_compact_new_chain, system_prompt),
        *(tool_calling, image_input, multi_turn, compact_response, compact_missing_model),
    )
}
BLIND, SHY = "image-input", "tool-calling"


@pytest.mark.parametrize("name", CASES)
async def test_a_case_with_the_simulated_engine(name: str) -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=5") as server:
        await CASES[name](server)


async def test_the_case_with_a_picture_with_a_model_that_sees(seeing: ServeModel) -> None:
    """On llama.cpp, with a tiny model and a projector."""
    async with seeing() as server:
        await CASES[BLIND](server)


@pytest.mark.vllm
async def test_the_case_with_a_picture_with_a_vllm_whose_model_sees() -> None:
    """``benchmarks/peers/pictures.py`` starts one."""
    async with running("vllm") as server:
        await CASES[BLIND](server)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(CASES.keys() - {BLIND, SHY}))
async def test_a_case_with_the_embedded_model(name: str, smollm2: ServeModel) -> None:
    async with smollm2() as server:
        await CASES[name](server)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_the_embedded_model_cannot_do(smollm2: ServeModel) -> None:
    """A picture is refused by name; an offered tool is answered with a text or a call."""
    async with smollm2() as server:
        picture = {"type": "input_image", "image_url": PICTURE}
        status, body = await server.post(input=[said("user", [picture])])
        assert (status, "image" in body["error"]["message"]) == (400, True)
        offered: Json = {"tools": [WEATHER], "max_output_tokens": 16}
        status, body = await server.post(input="How is the weather in San Francisco?", **CALM, **offered)
        assert (status, bool(body["output"])) == (200, True)
