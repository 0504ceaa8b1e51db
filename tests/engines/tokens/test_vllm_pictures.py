"""Pictures in front of a vLLM server: by ids, where only new ones are uploaded, or by its chat endpoint."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.commands.inspection.model_source import open_source
from slipring.engines.tokens.vllm import VllmEngine, content_parts
from tests.engines.fakes.server import Call, Refuse, Say, Stop
from tests.engines.fakes.vllm_pictures import (
    PICTURE_TOKENS,
    FakeSeeingVllm,
    chat_tokens,
    seeing_directory,
)
from tests.engines.llama.test_llama_pictures import image, text_of, user
from tests.harness import WEATHER, Running, serve
from tests.pictures import data_url, png
from tests.prompts.templates.test_picture_forms import job, renderer, said

ONE = [user("Look: ", image(1))]
TWO = [user("And ", image(2), "?")]


@asynccontextmanager
async def served(fake: FakeSeeingVllm, **options: Any) -> AsyncIterator[Running]:
    await fake.start()
    try:
        async with serve(fake.engine(**options)) as server:
            yield server
    finally:
        await fake.close()


async def test_pictures_go_beside_ids_and_are_uploaded_once() -> None:
    fake = FakeSeeingVllm()
    fake.script(Say(("One.",)), Stop())
    fake.script(Say(("Two.",)), Stop())
    fake.script(Say(("Three.",)), Stop())
    async with served(fake) as server, server.connect() as socket:
        first = await socket.response(input=ONE)
        second = await socket.response(input=TWO, previous_response_id=first["id"])
        third = await socket.response(input="Now?", previous_response_id=second["id"])
        assert not server.service.render_fallbacks
    assert [text_of(each) for each in (first, second, third)] == ["One.", "Two.", "Three."]
    assert fake.uploaded == [1, 1, 0]
    names = [[part["uuid"] for part in body["content_parts"]] for body in fake.requests]
    assert names[1][:1] == names[0]
    assert names[2] == names[1]
    for body, response, pictures in zip(fake.requests, (first, second, third), (1, 2, 2), strict=True):
        expected = len(body["token_ids"]) + (PICTURE_TOKENS - 1) * pictures
        assert response["usage"]["input_tokens"] == expected
    start, later = (body["token_ids"] for body in fake.requests[:2])
    assert later[: len(start)] == start, "text before a picture is not tokenized again"


@pytest.mark.parametrize("scale_out", [True, False])
async def test_a_server_gets_the_usual_spelling_of_a_data_url(scale_out: bool) -> None:
    plain = data_url(png(5, 5))
    spelled = plain.replace("data:image/png;base64,", "DATA:image/PNG;name=a;BASE64,")
    fake = FakeSeeingVllm()
    fake.scale_out = scale_out
    fake.script(Say(("One.",)), Stop())
    async with served(fake) as server, server.connect() as socket:
        shown = {"type": "input_image", "image_url": spelled}
        await socket.response(input=[{"role": "user", "content": [shown]}])
    sent = json.dumps(fake.requests[-1])
    assert plain in sent
    assert "DATA:" not in sent


async def test_a_picture_that_the_server_has_dropped_is_sent_again() -> None:
    fake = FakeSeeingVllm()
    fake.script(Say(("One.",)), Stop())
    fake.script(Say(("Two.",)), Stop())
    async with served(fake) as server, server.connect() as socket:
        first = await socket.response(input=ONE)
        fake.known.clear()
        second = await socket.response(input="Now?", previous_response_id=first["id"])
    assert text_of(second) == "Two."
    assert fake.uploaded == [1, 0, 1]


def test_another_tenant_has_other_names_for_the_same_picture() -> None:
    asked = job((said("Look: ", 1, 2),))
    sent = renderer("qwen_vl").render(asked).prompt
    parts = (content_parts(asked, sent, salt, frozenset()) for salt in ("a", "b"))
    one, two = ({part["uuid"] for part in each} for each in parts)
    assert len(one) == len(two) == 2
    assert one.isdisjoint(two)


async def test_a_server_without_scale_out_is_sent_messages_and_the_report_says_so() -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = False
    fake.script(Say(("One.",)), Stop())
    fake.script(Say(("Two.",)), Stop())
    async with served(fake) as server, server.connect() as socket:
        first = await socket.response(input=ONE, instructions="Be brief.")
        assert not server.service.render_fallbacks
        second = await socket.response(
            input="Now?", previous_response_id=first["id"], instructions="Be brief."
        )
        assert server.service.render_fallbacks
    assert text_of(second) == "Two."
    roles = [message["role"] for message in fake.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert fake.requests[1]["messages"][1]["content"][1]["type"] == "image_url"
    assert first["usage"]["input_tokens"] == chat_tokens(fake.requests[0]["messages"]) + PICTURE_TOKENS
    assert "tools" not in fake.requests[0]


async def test_tools_are_offered_by_the_chat_endpoint_and_calls_read_from_ids() -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = False
    fake.script(Call(str(WEATHER["name"]), '{"city": "Oslo"}'), Stop())
    async with served(fake) as server, server.connect() as socket:
        response = await socket.response(input=ONE, tools=[WEATHER])
    assert fake.requests[0]["tool_choice"] == "none"
    assert fake.requests[0]["tools"][0]["function"]["name"] == WEATHER["name"]
    (call,) = response["output"]
    assert json.loads(call["arguments"]) == {"city": "Oslo"}


@pytest.mark.parametrize("scale_out", [True, False])
async def test_settings_and_logprobs_of_a_turn_with_a_picture(scale_out: bool) -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = scale_out
    fake.script(Say(("One.",)), Stop())
    async with served(fake, priorities=True) as server, server.connect() as socket:
        response = await socket.response(
            input=ONE,
            temperature=0.5,
            max_output_tokens=50,
            top_logprobs=1,
            include=["message.output_text.logprobs"],
            text={"format": {"type": "json_object"}},
        )
    body = fake.requests[-1]
    sampling = body["sampling_params"] if scale_out else body
    assert (sampling["temperature"], sampling["max_tokens"]) == (0.5, 50)
    assert sampling["structured_outputs"]
    (part,) = response["output"][0]["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == "One."


@pytest.mark.parametrize("scale_out", [True, False])
async def test_turns_with_pictures_have_the_priority_and_the_hints_of_others(scale_out: bool) -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = scale_out
    async with served(fake, priorities=True, hints="dynamo") as server, server.connect() as socket:
        await socket.response(input=ONE, generate=False)
        first = await socket.response(input=ONE)
        await socket.response(input="more", previous_response_id=first["id"], store=False)
    assert [request["priority"] for request in fake.requests] == [2, 1, 0]
    hints = [request["nvext"]["agent_hints"]["priority"] for request in fake.requests]
    assert hints == [0, 1, 2]


async def test_a_warmup_with_a_picture_asks_for_one_token() -> None:
    fake = FakeSeeingVllm()
    fake.script(Say(("x",)), Stop("length"))
    async with served(fake) as server, server.connect() as socket:
        warm = await socket.response(input=ONE, generate=False)
    assert fake.requests[0]["sampling_params"]["max_tokens"] == 1
    assert warm["usage"]["output_tokens"] == 0
    assert warm["usage"]["input_tokens"] == len(fake.requests[0]["token_ids"]) + PICTURE_TOKENS - 1


async def test_a_refusal_of_the_whole_request_reaches_the_client() -> None:
    fake = FakeSeeingVllm()
    fake.script(Say(("One.",)), Stop())
    fake.script(Refuse(400, "too long"))
    fake.script(Refuse(400, "too long"))
    async with served(fake) as server, server.connect() as socket:
        first = await socket.response(input=ONE)
        second = await socket.response(input="Now?", previous_response_id=first["id"])
    assert "too long" in second["error"]["message"]
    assert fake.uploaded == [1, 0, 1]


async def test_a_model_that_does_not_see_refuses_pictures_by_name() -> None:
    fake = FakeSeeingVllm()
    fake.sees = False
    async with served(fake) as server, server.connect() as socket:
        error = await socket.error(input=ONE)
    assert error["error"]["code"] == "unsupported_parameter"
    assert error["error"]["param"] == "input[0].content[1]"


async def test_the_operator_decides_whether_a_model_sees() -> None:
    fake = FakeSeeingVllm()
    async with served(fake, images="off") as server, server.connect() as socket:
        assert (await socket.error(input=ONE))["error"]["code"] == "unsupported_parameter"
    blind = FakeSeeingVllm()
    blind.sees = False
    blind.script(Say(("One.",)), Stop())
    async with served(blind, images="on") as server, server.connect() as socket:
        assert text_of(await socket.response(input=ONE)) == "One."
    with pytest.raises(StartupError, match="'images' must be auto, on or off"):
        VllmEngine.from_options("http://127.0.0.1:9,images=maybe")


async def test_inspect_says_how_pictures_get_to_a_model(seeing_path: str, tiny_path: str) -> None:
    seen: list[str | None] = []
    for scale_out, sees in ((True, True), (False, True), (False, False)):
        fake = FakeSeeingVllm()
        fake.scale_out, fake.sees = scale_out, sees
        await fake.start()
        try:
            async with open_source(f"vllm:{fake.url},tokenizer={seeing_directory()}") as source:
                seen.append(source.pictures)
        finally:
            await fake.close()
    for path in (seeing_path, tiny_path):
        async with open_source(path) as source:
            seen.append(source.pictures)
    by_ids, by_chat, blind, projected, unprojected = map(str, seen)
    assert "new ones only" in by_ids
    assert "--enable-scale-out" in by_chat
    assert "mmproj-Tiny" in projected
    assert blind in unprojected


@pytest.mark.parametrize("scale_out", [True, False])
async def test_a_picture_that_the_server_refuses_is_named_if_it_can_be_found(scale_out: bool) -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = scale_out
    fake.script(Say(("One.",)), Stop())
    for _ in range(4):  # without what the server should know, and with everything
        fake.script(Refuse(400, "cannot identify image file"))
    async with served(fake) as server, server.connect() as socket:
        first = await socket.response(input=ONE)
        for numbers, named in (((2,), True), ((2, 3), False)):
            added = user("Look: ", *map(image, numbers))
            failed = await socket.response(input=[*ONE, *first["output"], added])
            message = failed["error"]["message"]
            assert ("Invalid 'input[2].content[1].image_url': the model's server refuses" in message) == named
            assert "cannot identify image file" in message


@pytest.mark.parametrize("scale_out", [True, False])
@pytest.mark.parametrize("broken", [1, 5, 9])
async def test_of_several_new_pictures_the_one_that_the_server_cannot_decode_is_named(
    scale_out: bool, broken: int
) -> None:
    fake = FakeSeeingVllm()
    fake.scale_out = scale_out
    fake.cannot_decode = image(broken)["image_url"]
    fake.script(Refuse(400, "cannot identify image file"))
    added = user("Look: ", *(image(number) for number in range(1, 10)))
    async with served(fake) as server, server.connect() as socket:
        failed = await socket.response(input=[user("Hello"), added])
    message = failed["error"]["message"]
    assert f"Invalid 'input[1].content[{broken}].image_url': the model's server refuses" in message
    assert fake.questions <= 2 + 5, "the first was at the start"
