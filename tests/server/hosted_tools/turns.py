"""What tests of hosted turns over real sockets share: scripted models, transports, and the SDK as a judge."""

import json
from pathlib import Path
from typing import Any

from openai._models import construct_type
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from tests.api import Api
from tests.harness import Running

Json = dict[str, Any]
TRANSPORTS = ["websocket", "sse", "post", "background"]


def scripted(folder: Path, *answers: list[Json]) -> str:
    """An engine that plays these answers."""
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"simulated:script={path},tokens_per_s=0"


def call(name: str = "add", label: str = "fake", **arguments: Any) -> Json:
    return {"function_call": {"name": name, "namespace": label, "arguments": arguments}}


def server(label: str = "fake", **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, "require_approval": "never", **fields}


def types(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def approval(response: Json, approve: bool = True) -> Json:
    """The answer to the last approval request of a response."""
    request = response["output"][-1]
    assert request["type"] == "mcp_approval_request"
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}


async def respond(running: Running, transport: str, **body: Any) -> Json:
    """Make a response over a transport. The SDK has to accumulate its stream to the same response."""
    if transport == "post":
        status, response = await running.post(**body)
        assert status == 200, response
        return response
    if transport == "websocket":
        async with running.connect() as socket:
            events = await socket.turn(**body)
    elif transport == "sse":
        events = await running.stream(**body)
    else:
        api = Api(running)
        begun = await api.begin(**body)
        ended = await api.ended(begun["id"])
        events = await api.events(begun["id"])
        assert events[-1]["response"] == ended
    response = events[-1]["response"]
    assert accumulated(events) == response["output"]
    return response


def accumulated(events: list[Json]) -> list[Json]:
    """The output items as the SDK puts them together from the events of a stream."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))  # type: ignore[arg-type]
    return [item.to_dict() for _, item in sorted(state._completed_output.items())]
