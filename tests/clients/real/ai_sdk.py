"""Vercel's AI SDK over HTTP: the only client here that validates every event against a strict schema.

With its providers of OpenAI (Responses, Chat Completions), of Anthropic, and of servers like OpenAI's.
"""

from tests.clients.real.client import Client
from tests.clients.real.stage import (
    LLAMA,
    LLAMA_MODEL,
    Answer,
    Json,
    Stage,
    call,
    hosted_call,
    say,
    tool_results,
)
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


_CHATS = ("chat", "compatible")
_THOUGHT: Answer = [{"reasoning": "A look first."}, call("get_weather", city="Paris")]


@ai_sdk.check("Chat Completions", "a tool loop, plain and streamed, with two calls in one step")
async def _(stage: Stage) -> None:
    both: Answer = [call("get_weather", city="Paris"), call("get_weather", city="Rome")]
    for api in _CHATS:
        async with stage.serve(both, [say("Sunny.")], both, [say("Sunny.")]) as relay:
            plain = await stage.node("ai-sdk", _DRIVER, relay.url, "plain", AI_SDK_API=api)
            streamed = await stage.node("ai-sdk", _DRIVER, relay.url, "tools", AI_SDK_API=api)
        assert plain.result == {"text": "Sunny.", "calls": 2}
        assert (streamed.result["text"], streamed.result["errors"]) == ("Sunny.", [])
        assert (streamed.result["calls"], streamed.result["finish"]) == (2, "stop")
        assert streamed.result["usage"]["inputTokens"] > 0
        assert [exchange.path for exchange in relay.exchanges] == ["/v1/chat/completions"] * 4
        results = [each for each in relay.exchanges[3].body["messages"] if each["role"] == "tool"]
        assert [each["content"] for each in results] == [
            f"sunny in {city}, asked {number} times" for number, city in ((1, "Paris"), (2, "Rome"))
        ]


@ai_sdk.check("Chat Completions", "thoughts are shown, and come back with the result of a call")
async def _(stage: Stage) -> None:
    async with stage.serve(_THOUGHT, [say("Sunny.")]) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "tools", AI_SDK_API="compatible")
    assert (ended.result["text"], ended.result["errors"]) == ("Sunny.", [])
    assert ended.result["reasoning"] == "A look first."
    (returned,) = [each for each in relay.exchanges[1].body["messages"] if each["role"] == "assistant"]
    assert returned["reasoning_content"] == "A look first."
    cached = relay.exchanges[1].answer[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= relay.exchanges[0].answer[-1]["usage"]["prompt_tokens"]


@ai_sdk.check("Chat Completions", "an object of a schema")
async def _(stage: Stage) -> None:
    for api in _CHATS:
        async with stage.serve(engine="simulated:tokens_per_s=0") as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, "object", AI_SDK_API=api)
        assert set(ended.result["object"]) == {"city", "degrees"}
        assert relay.exchanges[0].body["response_format"]["type"] == "json_schema"


@ai_sdk.check("Messages", "a tool loop, plain and streamed, with two calls in one step")
async def _(stage: Stage) -> None:
    both: Answer = [say("A look."), call("get_weather", city="Paris"), call("get_weather", city="Rome")]
    async with stage.serve(both, [say("Sunny.")], both, [say("Sunny.")]) as relay:
        plain = await stage.node("ai-sdk", _DRIVER, relay.url, "plain", AI_SDK_API="messages")
        streamed = await stage.node("ai-sdk", _DRIVER, relay.url, "tools", AI_SDK_API="messages")
    assert plain.result == {"text": "Sunny.", "calls": 2}
    assert (streamed.result["text"], streamed.result["errors"]) == ("A look.Sunny.", [])
    assert (streamed.result["calls"], streamed.result["finish"]) == (2, "stop")
    assert streamed.result["usage"]["inputTokens"] > 0
    assert [exchange.path for exchange in relay.exchanges] == ["/v1/messages"] * 4
    assert len(tool_results(relay.exchanges[3].body)) == 2


@ai_sdk.check("Messages", "thoughts come back in their signatures, in a tool loop and in the next question")
async def _(stage: Stage) -> None:
    answers: list[Answer] = [_THOUGHT, [{"reasoning": "It is there."}, say("Sunny.")], [say("Rain.")]]
    async with stage.serve(*answers) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "follow_up", AI_SDK_API="messages")
    assert (ended.result["first"], ended.result["text"], ended.result["errors"]) == ("Sunny.", "Rain.", [])
    thoughts = [
        block
        for message in relay.exchanges[2].body["messages"]
        for block in message["content"]
        if block["type"] == "thinking"
    ]
    assert [block["thinking"] for block in thoughts] == ["A look first.", "It is there."]
    assert all(block["signature"] for block in thoughts)
    before, after = relay.exchanges[1].answer["usage"], relay.exchanges[2].answer[-2]["usage"]
    assert after["cache_read_input_tokens"] >= before["input_tokens"] + before["cache_read_input_tokens"]


@ai_sdk.check("Messages", "thoughts are shown while they are streamed")
async def _(stage: Stage) -> None:
    async with stage.serve(_THOUGHT, [say("Sunny.")]) as relay:
        ended = await stage.node("ai-sdk", _DRIVER, relay.url, "thinking", AI_SDK_API="messages")
    assert (ended.result["text"], ended.result["errors"]) == ("Sunny.", [])
    assert ended.result["reasoning"] == "A look first."


@ai_sdk.check("Messages", "an object of a schema, by a tool and by a format")
async def _(stage: Stage) -> None:
    for scenario, field in (("object", "tools"), ("object_by_format", "output_config")):
        async with stage.serve(engine="simulated:tokens_per_s=0") as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, scenario, AI_SDK_API="messages")
        assert set(ended.result["object"]) == {"city", "degrees"}
        assert field in relay.exchanges[0].body


@ai_sdk.check("Chat Completions, Messages", "a failure in the middle of an answer has the engine's message")
async def _(stage: Stage) -> None:
    failing: Answer = [say("Well,"), {"error": {"message": "out of memory", "status": 500}}]
    for api in (*_CHATS, "messages"):
        async with stage.serve(failing) as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, "failing", AI_SDK_API=api)
        assert ended.result["text"] == "Well,", api
        assert len(ended.result["errors"]) == 1, (api, ended)
        assert "out of memory" in ended.result["errors"][0], (api, ended)
        assert len(relay.exchanges) == 1


@ai_sdk.check("Chat Completions, Messages", "a turn that a safety check blocks is sent once")
async def _(stage: Stage) -> None:
    for api in (*_CHATS, "messages"):
        async with stage.serve([say("Hi.")], flags=stage.blocking("Hello", before=True)) as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, "retrying", AI_SDK_API=api)
        assert ended.result["errors"] == ["The input was blocked by the safety check 'words'."], api
        assert len(relay.exchanges) == 1


@ai_sdk.check("Chat Completions, Messages", "an answer that reaches its bound, on the embedded model")
async def _(stage: Stage) -> None:
    for api in (*_CHATS, "messages"):
        async with stage.serve(engine=LLAMA) as relay:
            ended = await stage.node("ai-sdk", _DRIVER, relay.url, "short", model=LLAMA_MODEL, AI_SDK_API=api)
        assert ended.result["text"], api
        assert (ended.result["errors"], ended.result["finish"]) == ([], "length"), api
