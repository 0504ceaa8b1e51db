"""``HostedMCPTool`` of the OpenAI Agents SDK, unchanged: MCP tools that slipring runs."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

from slipring.core.turn.output.rejected_calls import LIMIT_REACHED, NOT_OFFERED
from tests import late
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.server import Call, Say, Stop
from tests.harness import serve
from tests.mcp.fakes import FakeServer, serving

Json = dict[str, Any]
Scripted = Callable[..., str]

SUM: Json = {"function_call": {"name": "add", "namespace": "fake", "arguments": {"a": 1, "b": 2}}}
ANSWER: Json = {"text": "It is 3."}

pytestmark = pytest.mark.parametrize("transport", ["WebSocket", "HTTP"])


@pytest.fixture(autouse=True)
def _no_traces() -> None:
    late.agents.set_tracing_disabled(True)  # otherwise it tries to send traces to OpenAI


@asynccontextmanager
async def running(engine: Any, fake: FakeServer, transport: str) -> AsyncIterator[Callable[..., Any]]:
    """A server of ours; yields a function that runs an agent with the fake's tools."""
    async with (
        serve(engine, mcp_urls="any") as server,
        AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        provider = late.agents.OpenAIProvider(
            openai_client=client, use_responses_websocket=transport == "WebSocket"
        )

        def run(
            *, streamed: bool = False, decide: Any = None, model_settings: Any = None, **settings: Any
        ) -> Any:
            config: Any = {"type": "mcp", "server_label": "fake", "server_url": fake.url}
            config["require_approval"] = "never" if decide is None else "always"
            tool = late.agents.HostedMCPTool(tool_config=config, on_approval_request=decide)
            agent = late.agents.Agent(name="sums", model="simulated", tools=[tool])
            runner = late.agents.Runner.run_streamed if streamed else late.agents.Runner.run
            runs = late.agents.RunConfig(model_provider=provider, model_settings=model_settings)
            return runner(agent, "1 + 2?", run_config=runs, **settings)

        async with aclosing(provider):
            yield run


def kinds(result: Any) -> list[str]:
    return [item.raw_item.type if item.type == "tool_call_item" else item.type for item in result.new_items]


async def test_a_tool_is_listed_and_called_in_one_response(scripted: Scripted, transport: str) -> None:
    async with serving(FakeServer(modern=True)) as fake:
        async with running(scripted([SUM], [ANSWER]), fake, transport) as run:
            result = await run()
        assert result.final_output == "It is 3."
        assert kinds(result) == ["mcp_list_tools_item", "mcp_call", "message_output_item"]
        assert len(result.raw_responses) == 1
        assert fake.count("tools/call") == 1


async def test_a_streamed_run_yields_the_events_of_lists_and_calls(
    scripted: Scripted, transport: str
) -> None:
    async with (
        serving(FakeServer(modern=True)) as fake,
        running(scripted([SUM], [ANSWER]), fake, transport) as run,
    ):
        result = run(streamed=True)
        raw = [e.data.type async for e in result.stream_events() if e.type == "raw_response_event"]
    assert result.final_output == "It is 3."
    assert {"response.mcp_list_tools.completed", "response.mcp_call_arguments.done"} < set(raw)
    assert raw.count("response.mcp_call.completed") == raw.count("response.completed") == 1


@pytest.mark.parametrize("chained", [True, False], ids=["chained", "whole history"])
async def test_an_approved_call_runs(scripted: Scripted, transport: str, chained: bool) -> None:
    asked: list[Any] = []

    def decide(request: Any) -> Json:
        asked.append(request.data)
        return {"approve": True}

    async with serving(FakeServer(modern=True)) as fake:
        async with running(scripted([SUM], [ANSWER]), fake, transport) as run:
            result = await run(decide=decide, auto_previous_response_id=chained)
        assert fake.count("tools/call") == 1
        assert fake.count("tools/list") == 1
    assert result.final_output == "It is 3."
    assert [(each.name, each.arguments) for each in asked] == [("add", '{"a":1,"b":2}')]
    (call,) = [item.raw_item for item in result.new_items if getattr(item.raw_item, "type", "") == "mcp_call"]
    assert (call.output, call.approval_request_id) == ("3", asked[0].id)


async def test_a_denied_call_does_not_run(scripted: Scripted, transport: str) -> None:
    async with serving(FakeServer(modern=True)) as fake:
        async with running(scripted([SUM], [{"text": "Then not."}]), fake, transport) as run:
            result = await run(decide=lambda request: {"approve": False, "reason": "too expensive"})
        assert fake.count("tools/call") == 0
    assert result.final_output == "Then not."
    assert "mcp_call" not in kinds(result)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_client_never_gets_the_call_of_a_tool_that_is_not_on_offer(
    transport: str, streamed: bool
) -> None:
    """The server of the chat engine lets its model call anything."""
    backend = FakeChatServer()
    await backend.start()
    try:
        backend.script(Call("fake__ad", "{}"), Stop())
        backend.script(Call("fake__add", '{"a":1,"b":2}'), Stop())
        backend.script(Call("fake__add", '{"a":3,"b":4}'), Call("nobody", "{}"), Stop())
        backend.script(Say(("It is 3.",)), Stop())
        settings = late.agents.ModelSettings(extra_body={"max_tool_calls": 1})
        async with serving(FakeServer(modern=True)) as fake:
            async with running(backend.engine(model="simulated"), fake, transport) as run:
                result = run(streamed=streamed, model_settings=settings)
                if streamed:
                    async for _ in result.stream_events():
                        pass
                else:
                    result = await result
            assert fake.count("tools/call") == 1
        assert result.final_output == "It is 3."
        assert "function_call" not in kinds(result)
        told = [
            [m["content"] for m in request["messages"] if m["role"] == "tool"] for request in backend.requests
        ]
        assert told[1] == [NOT_OFFERED]
        assert told[2] == [NOT_OFFERED, "3"]
        assert told[3] == [NOT_OFFERED, "3", LIMIT_REACHED, LIMIT_REACHED]
    finally:
        await backend.close()
