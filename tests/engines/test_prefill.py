"""Prefills beside turns, by every engine: of outputs that grow, and of contexts that a user rewrites.

No test needs a prefill to be finished at some time: each waits for the end of the prefills that its pieces
began, and no event answers a piece that is accepted, so a refused one shows that those before it were read.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.commands.inspection.model_directories import write_directory
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.families import Answer, FakeFamilyServer
from tests.engines.fakes.server import Call, Refuse, Say, Stall, Stop, in_front_of
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.llama.test_llama_engine import SHORT_CITY, cached
from tests.harness import WEATHER, Running, Socket, serve
from tests.model import ServeModel
from tests.prompts.templates.detection.test_format_detection import KNOWN
from tests.prompts.templates.family_templates import source_of

pytestmark = pytest.mark.usefixtures("compiled_here")

HEADER = {"OpenAI-Beta": "slipring_tool_output=v1"}
LOG = "".join(f"test number {number} of the module passed in {number % 7} ms\n" for number in range(60))
ASK: dict[str, Any] = {"input": "Run the tests.", "tools": [WEATHER], "store": False}


async def stream(
    socket: Socket, server: Running, response: dict[str, Any], text: str, *, size: int = 100
) -> str:
    """Send a text in pieces as the output of a response's call; returns the call's id. Waits until all of it
    has been prefilled that will be."""
    call_id: str = next(item["call_id"] for item in response["output"] if item["type"] == "function_call")
    piece = {"type": "response.tool_output.delta", "response_id": response["id"], "call_id": call_id}
    for at in range(0, len(text), size):
        await socket.send(**piece, delta=text[at : at + size])
    await socket.send(**{**piece, "response_id": "resp_unknown", "delta": ""})
    await socket.until("response.tool_output.failed")
    await prefilled(server)
    return call_id


async def prefilled(server: Running) -> None:
    """Wait until no prefill runs."""
    async with asyncio.timeout(300):
        while tasks := list(server.service.prefills.tasks.values()):
            await asyncio.wait(tasks)


def output(call_id: str, text: str) -> list[dict[str, Any]]:
    return [{"type": "function_call_output", "call_id": call_id, "output": text}]


def new_tokens(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens"]) - cached(response)


# llama

LLAMA: dict[str, Any] = {
    "tools": [SHORT_CITY],
    "temperature": 0,
    "max_output_tokens": 60,
    "parallel_tool_calls": False,
    "store": False,
}


async def ask_llama(socket: Socket) -> dict[str, Any]:
    return await socket.response(input="Run the tests.", tool_choice="required", **LLAMA)


async def answer_llama(socket: Socket, first: dict[str, Any], call_id: str, text: str) -> dict[str, Any]:
    asked = {**LLAMA, "tool_choice": "none", "max_output_tokens": 8, "input": output(call_id, text)}
    return await socket.response(**asked, previous_response_id=first["id"])


async def test_llama_processes_an_output_while_it_grows_and_answers_the_same(tiny: ServeModel) -> None:
    async with tiny(slots=2, context=2048) as server, server.connect(headers=HEADER) as socket:
        first = await ask_llama(socket)
        plain = await answer_llama(socket, first, first["output"][-1]["call_id"], LOG)
        assert new_tokens(plain) > 300
        first = await ask_llama(socket)
        call_id = await stream(socket, server, first, "Another text, so that nothing is cached. " + LOG)
        await answer_llama(socket, first, call_id, "")  # the chain goes on without what was streamed
        first = await ask_llama(socket)
        call_id = await stream(socket, server, first, LOG)
        streamed = await answer_llama(socket, first, call_id, LOG)
        assert new_tokens(streamed) < 60
        assert streamed["output"][0]["content"] == plain["output"][0]["content"]
        assert streamed["usage"]["input_tokens"] == plain["usage"]["input_tokens"]


async def test_an_output_that_differs_from_what_was_streamed_is_answered_as_it_is(tiny: ServeModel) -> None:
    async with tiny(slots=1, context=2048) as server, server.connect(headers=HEADER) as socket:
        first = await ask_llama(socket)
        plain = await answer_llama(socket, first, first["output"][-1]["call_id"], "Short.")
        first = await ask_llama(socket)
        call_id = await stream(socket, server, first, LOG)
        other = await answer_llama(socket, first, call_id, "Short.")
        assert other["output"][0]["content"] == plain["output"][0]["content"]


async def begun_prefill(server: Running, socket: Socket, first: dict[str, Any]) -> str:
    """Stream ``LOG`` as the output of a response's last call, and wait until the engine processes it; returns
    the id of the call."""
    engine = server.service.catalog.engines[0]
    begun = asyncio.Event()
    process = engine._process

    async def watched(*arguments: Any) -> None:
        begun.set()
        await process(*arguments)

    engine._process = watched
    call_id: str = first["output"][-1]["call_id"]
    piece = {"response_id": first["id"], "call_id": call_id, "delta": LOG}
    await socket.send(type="response.tool_output.delta", **piece)
    await begun.wait()
    return call_id


async def test_an_answer_on_another_lane_interrupts_a_prefill_which_then_goes_on(tiny: ServeModel) -> None:
    async with tiny(slots=1, context=2048) as server, server.connect(headers=HEADER) as socket:
        first = await ask_llama(socket)
        call_id = await begun_prefill(server, socket, first)
        other = await socket.response(
            input="Hello.", **{**LLAMA, "tools": [], "max_output_tokens": 4}, stream_id="b"
        )
        assert other["status"] == "incomplete"
        await prefilled(server)
        assert new_tokens(await answer_llama(socket, first, call_id, LOG)) < 60


async def test_a_fork_uses_the_context_of_its_parent_while_that_is_prefilled(tiny: ServeModel) -> None:
    fields = {**LLAMA, "instructions": "Nothing else has these instructions. " * 4}
    async with tiny(slots=2, context=2048) as server, server.connect(headers=HEADER) as socket:
        first = await socket.response(input="Run the tests.", tool_choice="required", **fields)
        call_id = await begun_prefill(server, socket, first)
        asked = {**fields, "tool_choice": "none", "max_output_tokens": 4, "input": output(call_id, "Short.")}
        fork = await socket.response(**asked, previous_response_id=first["id"], stream_id="b")
        assert cached(fork) >= first["usage"]["total_tokens"] - 8
        await prefilled(server)
        last = await socket.response(
            **{**asked, "input": output(call_id, LOG)}, previous_response_id=first["id"]
        )
        assert new_tokens(last) < 60


# vLLM and SGLang


def calls(fake: FakeTokenServer) -> None:
    fake.script(Call("get_weather", '{"city": "Rome"}'), Stop())


@pytest.mark.parametrize("make", [FakeVllm, FakeSglang])
async def test_servers_of_tokens_are_sent_whole_blocks_of_what_is_certain(
    make: type[FakeTokenServer],
) -> None:
    async with in_front_of(make()) as (fake, server), server.connect(headers=HEADER) as socket:
        calls(fake)
        first = await socket.response(**ASK)
        call_id = await stream(socket, server, first, 4 * LOG, size=400)
        warmed = fake.prompts[1:]
        assert warmed
        await socket.response(
            **{**ASK, "input": output(call_id, 4 * LOG + "end")}, previous_response_id=first["id"]
        )
        final = fake.prompts[-1]
        for earlier, prompt in zip([fake.prompts[0], *warmed], warmed, strict=False):
            assert prompt == final[: len(prompt)]
            assert len(prompt) % 16 == 0
            assert len(prompt) - len(earlier) >= 100, "many small prefills"
        assert len(final) - len(warmed[-1]) < 250


async def test_a_server_that_refuses_a_prefill_is_not_asked_again() -> None:
    async with in_front_of(FakeVllm()) as (fake, server), server.connect(headers=HEADER) as socket:
        calls(fake)
        first = await socket.response(**ASK)
        fake.script(Refuse(503))
        call_id = await stream(socket, server, first, LOG, size=len(LOG))
        await stream(socket, server, first, LOG)
        assert len(fake.prompts) == 2
        answer = await socket.response(
            input=output(call_id, LOG), previous_response_id=first["id"], store=False
        )
        assert answer["status"] == "completed"


@pytest.mark.parametrize("make", [FakeVllm, FakeSglang])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_continuation_or_a_disconnect_ends_the_prefill(
    make: type[FakeTokenServer], *, leaves: bool
) -> None:
    async with in_front_of(make()) as (fake, server):
        async with server.connect(headers=HEADER) as socket:
            calls(fake)
            first = await socket.response(**ASK)
            fake.script(Stall())
            call_id = first["output"][0]["call_id"]
            piece = {"response_id": first["id"], "call_id": call_id, "delta": LOG}
            await socket.send(type="response.tool_output.delta", **piece)
            await asyncio.wait_for(fake.stalled.wait(), 300)
            assert not fake.left.is_set()
            if not leaves:
                fake.script(Say(("fine",)), Stop())
                asked = {"input": output(call_id, LOG), "previous_response_id": first["id"], "store": False}
                assert (await socket.response(**asked))["status"] == "completed"
        await asyncio.wait_for(fake.left.wait(), 300)
        await prefilled(server)


async def test_a_server_that_stops_ends_its_prefills() -> None:
    async with (
        in_front_of(FakeVllm()) as (fake, server),
        server.connect(headers=HEADER, abandoned=True) as socket,
    ):
        calls(fake)
        first = await socket.response(**ASK)
        fake.script(Stall())
        piece = {"response_id": first["id"], "call_id": first["output"][0]["call_id"], "delta": LOG}
        await socket.send(type="response.tool_output.delta", **piece)
        await asyncio.wait_for(fake.stalled.wait(), 300)
        await server.service.prefills.close()
        await asyncio.wait_for(fake.left.wait(), 300)


@pytest.mark.parametrize("transport", ["websocket", "http"])
async def test_what_a_user_message_rewrites_is_prefilled_while_the_user_reads(
    tmp_path: Path, transport: str
) -> None:
    directory = write_directory(
        tmp_path / "model", source_of("qwen3"), bos_token="<s>", eos_token="<|im_end|>"
    )
    fake = FakeFamilyServer(directory, KNOWN["qwen3"], ("<|im_end|>", "<|im_end|>"))
    thoughts = "Long thoughts, to be dropped later. " * 20
    fake.answers.extend([Answer(thoughts=thoughts, text="It is sunny."), Answer(text="You are welcome.")])
    question: dict[str, Any] = {"input": "How is the weather? " * 60, "reasoning": {"effort": "high"}}
    async with in_front_of(fake, structural_tags=False) as (_, server):
        if transport == "websocket":
            async with server.connect() as socket:
                first = await socket.response(**question)
        else:
            _, first = await server.post(**question)
        await prefilled(server)
        (rewritten,) = fake.prefilled
        async with server.connect() as socket:
            await socket.response(
                input="Thanks.", previous_response_id=first["id"], reasoning={"effort": "high"}
            )
        assert fake.prompts[-1][: len(rewritten)] == rewritten
        assert len(fake.prompts[-1]) - len(rewritten) < 60


# Others


@pytest.mark.parametrize("vocabulary", ["", ",vocabulary=smollm2"])
async def test_the_simulated_engine_counts_what_was_prefilled(vocabulary: str) -> None:
    engine = f"simulated:tokens_per_s=0,prefill_tokens_per_s=100000{vocabulary}"
    async with serve(engine) as server, server.connect(headers=HEADER) as socket:
        first = await socket.response(**ASK, tool_choice="required")
        call_id = await stream(socket, server, first, LOG)
        again = {"input": output(call_id, LOG), "store": False, "tools": [WEATHER], "tool_choice": "none"}
        second = await socket.response(**again, previous_response_id=first["id"])
        assert new_tokens(second) < 80
        first = await socket.response(**{**ASK, "input": "Once more."}, tool_choice="required")
        call_id = await stream(socket, server, first, LOG)
        other = {**again, "input": output(call_id, "Something else. " * 50)}
        assert new_tokens(await socket.response(**other, previous_response_id=first["id"])) > 80


async def test_pieces_have_no_effect_on_servers_that_take_messages() -> None:
    async with in_front_of(FakeChatServer()) as (fake, server), server.connect(headers=HEADER) as socket:
        fake.script(Call("get_weather", '{"city": "Rome"}'), Stop())
        first = await socket.response(**ASK)
        call_id = await stream(socket, server, first, LOG)
        assert len(fake.requests) == 1
        await socket.response(input=output(call_id, LOG), previous_response_id=first["id"], store=False)
        assert fake.requests[1]["messages"][-1]["content"] == LOG
