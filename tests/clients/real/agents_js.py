"""@openai/agents: the tool loop of the JavaScript SDK, over its WebSocket transport and over HTTP."""

from tests.clients.real.client import Client
from tests.clients.real.disturbances import Cutting
from tests.clients.real.stage import (
    LLAMA,
    LLAMA_MODEL,
    LOOKS,
    Answer,
    Stage,
    call,
    hosted_call,
    say,
    shown_images,
)

agents_js = Client("agents-js", "@openai/agents (JS)")

_DRIVER = "agents_js.mjs"
_LOOP: list[Answer] = [
    [call("get_weather", city="Paris")],
    [call("get_weather", city="Rome")],
    [say("Sunny.")],
]


@agents_js.check("WebSocket", "a tool loop on one socket, with its whole history each time")
async def _(stage: Stage) -> None:
    async with stage.serve(*_LOOP) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "history")
    assert ended.result == {"text": "Sunny.", "calls": 2}
    assert [len(frame["input"]) for frame in relay.socket.sent] == [1, 3, 5]
    assert relay.exchanges == []


@agents_js.check("WebSocket", "the same, streamed")
async def _(stage: Stage) -> None:
    async with stage.serve(*_LOOP) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "streamed")
    assert ended.result == {"text": "Sunny.", "final": "Sunny.", "calls": 2}
    assert len(relay.socket.sent) == 3


@agents_js.check("WebSocket", "reasoning comes back within a whole history")
async def _(stage: Stage) -> None:
    thought = [{"reasoning_summary": "A look first."}, {"reasoning": "deep inside"}, *_LOOP[0]]
    async with stage.serve(thought, _LOOP[2]) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "history")
    assert ended.result == {"text": "Sunny.", "calls": 1}
    returned = [item.get("type") for item in relay.socket.sent[1]["input"]]
    assert returned[-3:] == ["reasoning", "function_call", "function_call_output"]


@agents_js.check("WebSocket", "two runs of a session, the second continues the first by its id")
async def _(stage: Stage) -> None:
    async with stage.serve(_LOOP[0], [say("Sunny.")], [say("Rain.")]) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "chained")
    assert ended.result["texts"] == ["Sunny.", "Rain."]
    last = relay.socket.sent[-1]
    assert last["previous_response_id"] == ended.result["first"] == relay.socket.responses[1]["id"]
    assert len(last["input"]) == 1


@agents_js.check("WebSocket", "a connection that breaks in the middle of an answer is an error")
async def _(stage: Stage) -> None:
    broken = [say("These are words of an answer that breaks off.")]
    async with stage.serve(broken, disturbance=Cutting(3), abandoned=True) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "history")
    assert (ended.code, ended.lines) == (1, []), ended
    assert len(relay.socket.sent) == 1


@agents_js.check("WebSocket, SSE", "a turn that a safety check blocks or cuts is sent once")
async def _(stage: Stage) -> None:
    for transport in ("websocket", "http"):
        for word, settings in (
            ("Paris", {}),
            ("Paris", {"before": True}),
            ("xyzzy", {}),
            ("xyzzy", {"action": "cut"}),
        ):
            flags = stage.blocking(word, **settings)
            async with stage.serve([say("Here it is: xyzzy.")], flags=flags) as relay:
                ended = await stage.node("agents-js", _DRIVER, relay.url, "streamed", transport)
            assert settings.get("action") == "cut" or (ended.code, ended.lines) == (1, []), ended
            requests = relay.exchanges if transport == "http" else relay.socket.sent
            assert len(requests) == 1, ended


@agents_js.check("WebSocket", "a run on the embedded model")
async def _(stage: Stage) -> None:
    async with stage.serve(engine=LLAMA) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "talk", model=LLAMA_MODEL)
    assert ended.result["text"]
    assert len(relay.socket.sent) == 1


@agents_js.check("HTTP", "a tool loop")
async def _(stage: Stage) -> None:
    async with stage.serve(*_LOOP) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "history", "http")
    assert ended.result == {"text": "Sunny.", "calls": 2}
    assert len(relay.exchanges) == 3


@agents_js.check("SSE", "a tool loop, streamed")
async def _(stage: Stage) -> None:
    async with stage.serve(*_LOOP) as relay:
        ended = await stage.node("agents-js", _DRIVER, relay.url, "streamed", "http")
    assert ended.result == {"text": "Sunny.", "final": "Sunny.", "calls": 2}
    assert len(relay.exchanges) == 3


async def _show(stage: Stage, transport: str) -> None:
    (sent, sent_url), (returned, returned_url) = stage.pictures(2)
    async with stage.serve_seeing(*LOOKS) as (relay, fake):
        ended = await stage.node(
            *("agents-js", _DRIVER, relay.url, "pictures", transport), str(sent), str(returned)
        )
    assert ended.result == {"text": "They differ."}
    assert shown_images(fake) == [sent_url, returned_url]


@agents_js.check("WebSocket", "an image in a message, and one that a tool returns")
async def _(stage: Stage) -> None:
    await _show(stage, "websocket")


@agents_js.check("HTTP", "an image in a message, and one that a tool returns")
async def _(stage: Stage) -> None:
    await _show(stage, "http")


_HOSTED: list[Answer] = [[hosted_call("add", a=1, b=2)], [say("It is 3.")]]


@agents_js.check("WebSocket", "tools of an MCP server, which slipring calls")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(*_HOSTED) as (relay, fake):
        ended = await stage.node("agents-js", _DRIVER, relay.url, "hosted", "websocket", fake.url)
    assert ended.result == {"text": "It is 3.", "asked": [], "outputs": ["3"], "responses": 1}
    assert fake.count("tools/call") == 1


@agents_js.check("SSE", "tools of an MCP server, which slipring calls")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(*_HOSTED) as (relay, fake):
        ended = await stage.node("agents-js", _DRIVER, relay.url, "hostedStreamed", "http", fake.url)
    assert ended.result == {"text": "It is 3.", "asked": [], "outputs": ["3"], "responses": 1}


@agents_js.check("WebSocket", "a call of an MCP server's tool is approved")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(*_HOSTED) as (relay, fake):
        ended = await stage.node("agents-js", _DRIVER, relay.url, "approved", "websocket", fake.url)
    asked = [["add", '{"a":1,"b":2}']]
    assert ended.result == {"text": "It is 3.", "asked": asked, "outputs": ["3"], "responses": 2}
    assert (fake.count("tools/list"), fake.count("tools/call")) == (1, 1)


@agents_js.check("HTTP", "a call of an MCP server's tool is denied")
async def _(stage: Stage) -> None:
    async with stage.serve_with_tools(_HOSTED[0], [say("Then not.")]) as (relay, fake):
        ended = await stage.node("agents-js", _DRIVER, relay.url, "denied", "http", fake.url)
    assert (ended.result["text"], ended.result["outputs"]) == ("Then not.", [])
    assert fake.count("tools/call") == 0
