"""A rollout with an embedded model gives the same answers as separate turns, without a new prefill."""

from typing import Any

from tests.engines.llama.test_llama_engine import SHORT_CITY
from tests.harness import TERMINAL, Socket
from tests.model import ServeModel

HEADER = {"OpenAI-Beta": "slipring_rollout=v1"}
ASK: dict[str, Any] = {
    "input": "How is the weather in Rome?",
    "tools": [SHORT_CITY],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "temperature": 0,
    "max_output_tokens": 100,
    "store": False,
}
RESULT = "Sunny."


def outputs(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": RESULT} for call in calls]


async def turn_by_turn(socket: Socket) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    first = await socket.response(**ASK)
    left = ASK["max_output_tokens"] - first["usage"]["output_tokens"]  # a rollout has one limit for all steps
    again = {**ASK, "input": outputs(first["output"]), "tool_choice": "none", "max_output_tokens": left}
    second = await socket.response(**again, previous_response_id=first["id"])
    return [*first["output"], *second["output"]], second


async def rolled_out(socket: Socket) -> dict[str, Any]:
    await socket.create(**ASK, rollout=True)
    done = (await socket.until("response.done"))[-1]
    await socket.send(
        type="response.append", response_id=done["response_id"], input=outputs(done["required_input"])
    )
    response: dict[str, Any] = (await socket.until(*TERMINAL))[-1]["response"]
    return response


def texts_of(items: list[dict[str, Any]]) -> list[str]:
    return [item.get("arguments") or item["content"][0]["text"] for item in items if "output" not in item]


async def test_a_rollout_answers_like_separate_turns_and_prefills_only_new_tokens(
    tiny: ServeModel,
) -> None:
    async with tiny(slots=1, context=2048) as server, server.connect(headers=HEADER) as socket:
        separate, last = await turn_by_turn(socket)
        together = await rolled_out(socket)
        assert texts_of(together["output"]) == texts_of(separate)
        # The first step was asked before and the second continues it: only the tool's result is new.
        usage = together["usage"]
        new = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
        assert new < 40
        assert not server.service.render_fallbacks
        # A follow-up continues the rollout's context.
        more = await socket.response(
            **{**ASK, "input": "Thanks.", "tool_choice": "none"}, previous_response_id=together["id"]
        )
        cached = more["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached >= last["usage"]["input_tokens"]
        assert not server.service.render_fallbacks
