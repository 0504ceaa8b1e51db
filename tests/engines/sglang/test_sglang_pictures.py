"""Pictures in front of an SGLang server: beside ids, all of them in each turn."""

from typing import Any

from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.vllm_pictures import seeing_directory
from tests.engines.llama.test_llama_pictures import image, text_of, user
from tests.harness import serve


async def turns(fake: FakeSglang, **options: Any) -> list[dict[str, Any]]:
    fake.script(Say(("One.",)), Stop())
    fake.script(Say(("Two.",)), Stop())
    await fake.start()
    try:
        engine = fake.engine(tokenizer=seeing_directory(), **options)
        async with serve(engine) as server, server.connect() as socket:
            first = await socket.response(input=[user("Look: ", image(1))])
            second = await socket.response(input=[user("And ", image(2))], previous_response_id=first["id"])
            assert bool(server.service.render_fallbacks)
        return [first, second]
    finally:
        await fake.close()


async def test_pictures_go_beside_ids_and_the_server_counts_them() -> None:
    fake = FakeSglang()
    fake.sees, fake.checks_prompts = True, False
    first, second = await turns(fake)
    assert [text_of(first), text_of(second)] == ["One.", "Two."]
    one, two = fake.requests
    assert [len(body["image_data"]) for body in (one, two)] == [1, 2]
    assert two["image_data"][0] == one["image_data"][0] == image(1)["image_url"]
    assert two["input_ids"][: len(one["input_ids"])] == one["input_ids"]
    assert first["usage"]["input_tokens"] == len(one["input_ids"]) + 9
    assert second["usage"]["input_tokens"] == len(two["input_ids"]) + 18


async def test_turns_with_pictures_take_no_session() -> None:
    fake = FakeSglang()
    fake.sees, fake.checks_prompts, fake.has_sessions = True, False, True
    await turns(fake)
    assert all("session_params" not in body for body in fake.requests)


async def test_a_model_that_does_not_see_refuses_them() -> None:
    fake = FakeSglang()
    await fake.start()
    try:
        engine = fake.engine(tokenizer=seeing_directory())
        async with serve(engine) as server, server.connect() as socket:
            error = await socket.error(input=[user("Look: ", image(1))])
    finally:
        await fake.close()
    assert error["error"]["code"] == "unsupported_parameter"
