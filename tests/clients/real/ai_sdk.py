"""Vercel's AI SDK over HTTP: the only client here that validates every event against a strict schema."""

from tests.clients.real.client import Client
from tests.clients.real.stage import LLAMA, LLAMA_MODEL, Answer, Json, Stage, call, hosted_call, say
from tests.mcp.fakes import Exchange, FakeServer, Reply, text

ai_sdk = Client("ai-sdk", "Vercel AI SDK")

_DRIVER = "ai_sdk.mjs"
_LOOP: list[Answer] = [
    [call("get_weather", city="Paris")],
    [call("get_weather", city="Rome")],
    [say("Sunny.")],
]


@ai_sdk.check("SSE", "a tool loop")
async def _(stage: Stage) -> None:
    async with stage.serve(*_LOOP) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "tools")
    assert (ended.result["text"], ended.result["errors"]) == ("Sunny.", [])
    assert (ended.result["calls"], ended.result["finish"]) == (2, "stop")
    assert len(relay.exchanges) == 3


@ai_sdk.check("SSE", "reasoning, then an answer")
async def _(stage: Stage) -> None:
    async with stage.serve([{"reasoning_summary": "A look first."}, say("Sunny.")]) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "tools")
    assert (ended.result["text"], ended.result["errors"]) == ("Sunny.", [])
    assert ended.result["reasoning"] == "A look first."


@ai_sdk.check("SSE", "a stored response is continued by its id")
async def _(stage: Stage) -> None:
    async with stage.serve([say("Hi.")], [say("Hi again.")]) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "chained")
    assert (ended.result["text"], ended.result["errors"]) == ("Hi again.", [])
    assert relay.exchanges[1].body["previous_response_id"] == ended.result["first"]
    assert len(relay.exchanges[1].body["input"]) == 1


@ai_sdk.check("SSE", "an answer that reaches its bound, on the embedded model")
async def _(stage: Stage) -> None:
    async with stage.serve(engine=LLAMA) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "short", model=LLAMA_MODEL)
    assert ended.result["text"]
    assert (ended.result["errors"], ended.result["finish"]) == ([], "length")
    assert len(relay.exchanges) == 1


@ai_sdk.check("SSE", "a failure in the middle of an answer is reported with the engine's message")
async def _(stage: Stage) -> None:
    failing: Answer = [say("Well,"), {"error": {"message": "out of memory", "status": 500}}]
    async with stage.serve(failing) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "failing")
    assert (ended.result["text"], ended.result["errors"]) == ("Well,", ["out of memory"])
    assert ended.result["finish"] == "error"
    assert len(relay.exchanges) == 1


@ai_sdk.check("SSE", "a turn that a safety check blocks is sent once, and nothing of the answer is shown")
async def _(stage: Stage) -> None:
    for word, before, blocked in (
        ("Hello", False, "input"),
        ("Hello", True, "input"),
        ("xyzzy", False, "answer"),
    ):
        flags = stage.blocking(word, before=before)
        async with stage.serve([say("Here it is: xyzzy.")], flags=flags) as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, "retrying")
        error = f"The {blocked} was blocked by the safety check 'words'."
        assert (ended.result["text"], ended.result["errors"]) == ("", [error])
        assert len(relay.exchanges) == 1


@ai_sdk.check("SSE", "an answer that a safety check cuts is asked for once, and ends as filtered")
async def _(stage: Stage) -> None:
    async with stage.serve(
        [say("Here it is: xyzzy. And more.")], flags=stage.blocking("xyzzy", action="cut")
    ) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "retrying")
    assert (ended.result["errors"], ended.result["finish"]) == ([], "content-filter")
    assert len(relay.exchanges) == 1


@ai_sdk.check("HTTP", "a tool loop")
async def _(stage: Stage) -> None:
    async with stage.serve(*_LOOP) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "plain")
    assert ended.result == {"text": "Sunny.", "calls": 2}
    assert len(relay.exchanges) == 3


@ai_sdk.check("HTTP", "an object of a schema")
async def _(stage: Stage) -> None:
    async with stage.serve(engine="simulated:tokens_per_s=0") as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "object")
    assert set(ended.result["object"]) == {"city", "degrees"}
    assert relay.exchanges[0].body["text"]["format"]["type"] == "json_schema"


_HOSTED: list[Answer] = [[hosted_call("add", a=1, b=2)], [say("It is 3.")]]


@ai_sdk.check("SSE", "tools of an MCP server, which slipring calls")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(*_HOSTED) as (relay, fake):
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "hosted", fake.url)
    assert (ended.result["text"], ended.result["errors"]) == ("It is 3.", [])
    assert ended.result["results"] == ["3"]
    assert len(relay.exchanges) == 1


@ai_sdk.check("HTTP, SSE", "tools of an MCP server that has neither descriptions nor annotations")
async def _(stage: Stage) -> None:
    for scenario in ("listed", "hosted"):
        bare = FakeServer(modern=True)
        bare.tools = [{"name": "add", "inputSchema": {"type": "object"}}]
        async with stage.serve_with_tools(*_HOSTED, fake=bare) as (relay, fake):
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, scenario, fake.url)
        assert (ended.result["text"], ended.result["results"]) == ("It is 3.", ["3"])
        assert len(relay.exchanges) == 1


_CODE = "code_interpreter"
_SEARCHES = ("web_search", "file_search")
_BUILTIN: list[Answer] = [
    *([call(kind, query="q")] for kind in _SEARCHES),
    [call(_CODE, code="6 * 7")],
    [say("Done.")],
]


async def _bare(exchange: Exchange) -> Reply:
    return text('[{"text": "a passage"}]')


@ai_sdk.check("HTTP, SSE", "built-in tools that an MCP server answers with nothing but text")
async def _(stage: Stage) -> None:
    for scenario in ("builtin_plain", "builtin"):
        fake = FakeServer(modern=True)
        fake.tools = [{"name": name, "inputSchema": {"type": "object"}} for name in (*_SEARCHES, _CODE)]
        fake.calls |= dict.fromkeys((*_SEARCHES, _CODE), _bare)
        async with stage.serve_with_builtins(*_BUILTIN, fake=fake) as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, scenario)
        assert (ended.result["text"], ended.result.get("errors", [])) == ("Done.", [])
        results: list[Json] = ended.result["results"]
        assert len(results) == 3
        assert [each["text"] for each in results[1]["results"]] == ["a passage"]
        assert [each["logs"] for each in results[2]["outputs"]] == ['[{"text": "a passage"}]']


@ai_sdk.check("HTTP, SSE", "a call of a custom tool")
async def _(stage: Stage) -> None:
    for scenario in ("own_plain", "own"):
        async with stage.serve([{"custom_tool_call": {"name": "notes", "input": "buy milk"}}]) as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, scenario)
        assert (ended.result["inputs"], ended.result.get("errors", [])) == ([["notes", "buy milk"]], [])


@ai_sdk.check("HTTP, SSE", "a call of an MCP server's tool is approved")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(*_HOSTED) as (relay, fake):
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "approved", fake.url)
    assert (ended.result["text"], ended.result["errors"]) == ("It is 3.", [])
    assert (ended.result["asked"], ended.result["results"]) == (1, ["3"])
    assert fake.count("tools/call") == 1


@ai_sdk.check("HTTP, SSE", "a call of an MCP server's tool is denied")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(_HOSTED[0], [say("Then not.")]) as (relay, fake):
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "denied", fake.url)
    assert (ended.result["text"], ended.result["errors"]) == ("Then not.", [])
    assert (ended.result["asked"], ended.result["results"]) == (1, [])
    assert fake.count("tools/call") == 0
    (*_, decision) = relay.exchanges[1].body["input"]
    assert (decision["type"], decision["approve"]) == ("mcp_approval_response", False)
