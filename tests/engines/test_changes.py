"""A chain whose turns are made by different engines."""

from pathlib import Path
from typing import Any

import aiohttp

from slipring.server.process.server import Server
from tests.config.test_settings import load
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.server import Call, Say, Stop
from tests.harness import WEATHER, Running

GREEDY = {"temperature": 0, "max_output_tokens": 8, "store": False, "tools": [WEATHER]}
TIMED = {"OpenAI-Beta": "slipring_timing=v1"}


async def test_a_chain_keeps_its_history_from_llama_to_chat_and_back(tiny_path: str, tmp_path: Path) -> None:
    fake = FakeChatServer()
    await fake.start()
    file = tmp_path / "slipring.toml"
    file.write_text(
        f"""
        [models.small]
        engine = "llama:{tiny_path},slots=1,context=1024"
        [models.large]
        engine = "chat:{fake.url},model=upstream-name"
        """,
        encoding="utf-8",
    )
    server = Server(load(["--config", str(file), "--port", "0"], {}))
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            await change_engines(Running(server, http), fake)
    finally:
        await server.stop()
        await fake.close()


async def change_engines(server: Running, fake: FakeChatServer) -> None:
    async with server.connect(headers=TIMED) as socket:

        async def turn(model: str, given: Any, previous: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
            response = await socket.response(
                model=model, input=given, previous_response_id=previous, **GREEDY
            )
            return response, (await socket.receive())["timing"]

        first, _ = await turn("small", "My name is Ada. Say hello.", None)
        fake.script(Call("get_weather", '{"city": "Rome"}'), Stop())
        second, _ = await turn("large", "The weather in Rome?", first["id"])
        asked = fake.requests[-1]
        assert asked["model"] == "upstream-name"
        assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "user"]
        assert asked["messages"][1]["content"] == first["output"][0]["content"][0]["text"]
        (call,) = second["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny in Rome"}
        third, timing = await turn("small", [output], second["id"])
        assert timing["fallback"] == "the parent was not rendered by this model"
        engine = server.service.catalog.engine_of(server.service.catalog.find("small"))
        rendered = engine._slots._all[0].context
        prompt = b"".join(map(engine.renderer.bytes_of, rendered.ids())).decode()
        for words in ("My name is Ada", "The weather in Rome?", '"city": "Rome"', "sunny in Rome"):
            assert words in prompt
        fourth, timing = await turn("small", "Thank you.", third["id"])
        assert "fallback" not in timing, "rendered anew once, then by delta again"
        assert timing["tokens"]["cached"] >= third["usage"]["total_tokens"]
        fake.script(Say(("Bye",)), Stop())
        await turn("large", "Bye.", fourth["id"])
        sent = str(fake.requests[-1]["messages"])
        assert all(words in sent for words in ("My name is Ada", "sunny in Rome", "Thank you."))
