"""Which thoughts of earlier turns a model reads, over the wire: in a chain, resent, and as requests ask."""

from typing import Any

import pytest

from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.tokenized import TokenizedEngine
from tests.harness import serve
from tests.prompts.templates.family_renderers import family_renderer

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def thought(id: str) -> Json:
    content = [{"type": "reasoning_text", "text": f"About {id}."}]
    return {"type": "reasoning", "id": id, "summary": [], "content": content}


def answer(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": text}


HISTORY = [
    *(user("One?"), thought("rs_one"), answer("1")),
    *(user("Two?"), thought("rs_two"), answer("2")),
    user("Three?"),
]
REMOVED = {"type": "reasoning", "action": "removed", "reason": "turn_boundary"}


def qwen() -> TokenizedEngine:
    options = SimulatedOptions(tokens_per_s=0, vocabulary="smollm2", output_tokens=5)
    return TokenizedEngine(options, family_renderer("qwen3"))


def withheld(response: Json) -> list[str]:
    listed = response.get("input_transformations", [])
    assert listed == [{"id": each["id"], **REMOVED} for each in listed]
    return [each["id"] for each in listed]


async def test_a_response_lists_the_thoughts_that_the_template_left_out() -> None:
    async with serve(qwen()) as server:
        _, first = await server.post(input=HISTORY)
        assert withheld(first) == ["rs_one", "rs_two"]
        assert first["reasoning"]["context"] == "current_turn"
        _, chained = await server.post(input=[user("Four?")], previous_response_id=first["id"])
        _, resent = await server.post(input=[*HISTORY, *first["output"], user("Four?")])
        assert withheld(chained) == withheld(resent) == ["rs_one", "rs_two"]
        assert chained["usage"]["input_tokens"] == resent["usage"]["input_tokens"]


async def test_a_request_decides_which_thoughts_the_model_reads() -> None:
    """Qwen3's template has no variable that keeps thoughts: a chain keeps them, a rendered history cannot."""
    async with serve(qwen()) as server:
        _, first = await server.post(input=HISTORY[:1])
        added = {"input": [thought("rs_one"), answer("1"), user("Two?")], "previous_response_id": first["id"]}
        _, asked = await server.post(**added, reasoning={"context": "current_turn"})
        assert withheld(asked) == ["rs_one"]
        assert asked["reasoning"]["context"] == "current_turn"
        _, sent = await server.post(input=HISTORY, reasoning={"context": "all_turns"})
        assert withheld(sent) == ["rs_one", "rs_two"]
        assert sent["reasoning"]["context"] == "current_turn", "what was asked is not what was done"
        _, nothing = await server.post(input=HISTORY[:1], reasoning={"context": "all_turns"})
        assert withheld(nothing) == []
        assert nothing["reasoning"]["context"] == "all_turns"
