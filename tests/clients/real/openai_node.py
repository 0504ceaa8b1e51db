"""openai-node: `ResponsesWS`, and the package's own lanes on top of it."""

from tests.clients.real.client import Client
from tests.clients.real.stage import (
    LLAMA,
    LLAMA_MODEL,
    LOOKS,
    Stage,
    call,
    require_delta,
    require_forks,
    say,
    shown_images,
)
from tests.clients.test_examples import EXAMPLES, require_streamed

openai_node = Client("openai-node", "openai-node")

_DRIVER = "openai_node.mjs"
_STREAMED_TOOL = EXAMPLES / "streamed_tool.mjs"


@openai_node.check("WebSocket", "a tool loop by delta")
async def _(stage: Stage) -> None:
    asked = [call("get_weather", city="Paris")]
    async with stage.serve(asked, asked, [say("Sunny.")]) as relay:
        ended = await stage.node("openai-node", _DRIVER, relay.url, "tools")
    assert ended.result == {"calls": 2, "text": "Sunny."}
    assert len(relay.socket.sent) == 3
    require_delta(relay.socket.sent, relay.socket.responses)


@openai_node.check("WebSocket", "a warmup is continued")
async def _(stage: Stage) -> None:
    async with stage.serve([say("Hi.")]) as relay:
        ended = await stage.node("openai-node", _DRIVER, relay.url, "warmup")
    assert ended.result == {"warmed": [], "text": "Hi."}
    require_delta(relay.socket.sent, relay.socket.responses)


@openai_node.check("WebSocket", "the package's lanes: two forks of one parent")
async def _(stage: Stage) -> None:
    async with stage.serve([say("Once upon a time.")], [say("The end.")], [say("The end.")]) as relay:
        ended = await stage.node("openai-node", _DRIVER, relay.url, "lanes")
    require_forks(ended.result, relay.socket, "The end.")


@openai_node.check("WebSocket", "an error is reported, and the socket stays usable")
async def _(stage: Stage) -> None:
    async with stage.serve([say("Hi.")]) as relay:
        ended = await stage.node("openai-node", _DRIVER, relay.url, "error")
    assert ended.result["text"] == "Hi."
    assert ended.result["error"]["error"]["code"] == "previous_response_not_found"
    assert ended.result["error"]["status"] == 400
    assert len(relay.socket.sent) == 2


@openai_node.check("WebSocket", "two turns on the embedded model")
async def _(stage: Stage) -> None:
    async with stage.serve(engine=LLAMA) as relay:
        ended = await stage.node("openai-node", _DRIVER, relay.url, "talk", model=LLAMA_MODEL)
    assert all(ended.result["texts"])
    assert ended.result["usage"]["input_tokens_details"]["cached_tokens"] > 0
    require_delta(relay.socket.sent, relay.socket.responses)


@openai_node.check("WebSocket", "the example whose tool streams its output")
async def _(stage: Stage) -> None:
    asked = [call("shell", command="checks")]
    async with stage.serve(asked, asked, [say("They pass.")]) as relay:
        ended = await stage.node("openai-node", _STREAMED_TOOL, relay.url)
    ended.require_success()
    assert ended.stdout.endswith("They pass.\n")
    require_streamed(relay.socket, calls=2)


@openai_node.check("HTTP, SSE", "a stored response is continued by a stream")
async def _(stage: Stage) -> None:
    async with stage.serve([say("Hi.")], [say("Hi again.")]) as relay:
        ended = await stage.node("openai-node", _DRIVER, relay.url, "http")
    assert ended.result == {"texts": ["Hi.", "Hi again."]}
    assert [exchange.status for exchange in relay.exchanges] == [200, 200]


@openai_node.check("WebSocket", "an image in a message, and one in the output of a function")
async def _(stage: Stage) -> None:
    (sent, sent_url), (returned, returned_url) = stage.pictures(2)
    async with stage.serve_seeing(*LOOKS) as (relay, fake):
        ended = await stage.node("openai-node", _DRIVER, relay.url, "pictures", str(sent), str(returned))
    assert ended.result == {"text": "They differ."}
    assert shown_images(fake) == [sent_url, returned_url]
    require_delta(relay.socket.sent, relay.socket.responses)
