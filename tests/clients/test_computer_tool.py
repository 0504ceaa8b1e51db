"""``ComputerTool`` of the OpenAI Agents SDK, unchanged: a model of ours uses a computer of the client's."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests import late
from tests.harness import serve
from tests.pictures import PIXEL

Json = dict[str, Any]
ACTIONS: list[Json] = [
    {"type": "click", "button": "left", "x": 1, "y": 2, "keys": None},
    {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "keys": None},
    {"type": "type", "text": "slipring"},
]
ANSWER: Json = {"text": "Found."}


@pytest.fixture(autouse=True)
def _no_traces() -> None:
    late.agents.set_tracing_disabled(True)  # otherwise it tries to send traces to OpenAI


def desk(done: list[Any]) -> Any:
    """A computer that notes what is done at it."""

    def note(name: str) -> Callable[..., Any]:
        return lambda self, *given: done.append((name, *given))

    methods: Json = {
        name: note(name)
        for name in ("click", "double_click", "scroll", "type", "wait", "move", "keypress", "drag")
    }
    methods["screenshot"] = lambda self: PIXEL.partition(",")[2]
    return type("Desk", (late.agents.Computer,), methods)()


@pytest.mark.parametrize("chained", [True, False], ids=["chained", "resent"])
async def test_the_actions_of_a_call_are_done_and_the_screenshot_is_answered(
    scripted: Callable[..., str], chained: bool
) -> None:
    done: list[Any] = []
    call = {"function_call": {"name": "computer", "kind": "computer", "arguments": {"actions": ACTIONS}}}
    async with (
        serve(scripted([call], [ANSWER])) as server,
        AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        provider = late.agents.OpenAIProvider(openai_client=client, use_responses_websocket=True)
        async with aclosing(provider):
            agent = late.agents.Agent(
                name="desk", model="simulated", tools=[late.agents.ComputerTool(computer=desk(done))]
            )
            runs = late.agents.RunConfig(model_provider=provider)
            result = await late.agents.Runner.run(
                agent, "Search.", run_config=runs, auto_previous_response_id=chained
            )
    assert result.final_output == "Found."
    assert done == [("click", 1, 2, "left"), ("drag", [(1, 2), (3, 4)]), ("type", "slipring")]
