"""Validates every body and event that slipring sends to clients of the Messages API.

As `tests.wire` does for the Responses API: strictly by the anthropic package's own types, without extra keys,
and by the order of events.
"""

import json
from typing import Any, get_args

from anthropic.types import ModelInfo
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from anthropic.types.message import Message
from anthropic.types.message_tokens_count import MessageTokensCount
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from anthropic.types.shared.error_response import ErrorResponse
from pydantic import BaseModel

from tests import wire

Json = dict[str, Any]

_BETA = ("mcp_tool_use", "mcp_tool_result")
"""Blocks that only the beta types have."""
_DELTAS = {
    "text": ("text_delta",),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
    "mcp_tool_use": ("input_json_delta",),
    "server_tool_use": ("input_json_delta",),
}
"""The deltas of each kind of block."""


def _models(union: Any) -> dict[str, type[BaseModel]]:
    return {
        get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(union)[0])
    }


_EVENTS = _models(RawMessageStreamEvent)
_BETA_EVENTS = _models(BetaRawMessageStreamEvent)


def _is_beta(document: object) -> bool:
    text = json.dumps(document)
    return '"context_management"' in text or any(f'"{kind}"' in text for kind in _BETA)


def check_message(body: Json) -> Json:
    """Check a whole answer."""
    wire.validate(BetaMessage if _is_beta(body) else Message, body)
    assert body["stop_reason"] is not None
    return body


def check_count(body: Json) -> Json:
    wire.validate(MessageTokensCount, body)
    return body


def check_models(body: Json) -> Json:
    assert set(body) == {"data", "has_more", "first_id", "last_id"}
    for model in body["data"]:
        wire.validate(ModelInfo, model)
    return body


def check_error(body: Json) -> Json:
    assert set(body) == {"type", "error", "request_id"}, body
    if body["error"]["type"] != "request_too_large":  # the API's, although the package's types lack it
        wire.validate(ErrorResponse, body)
    return body


def read_events(text: str) -> list[Json]:
    """Check a whole SSE body: framing, types and order."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = wire.parse(data.removeprefix("data: "))
        assert name == f"event: {event['type']}", block
        events.append(event)
    check_events(events)
    return events


def check_events(events: list[Json]) -> None:
    """Check the events of a whole stream."""
    for event in events:
        if event["type"] == "error":
            check_error(event)
        elif event["type"] == "ping":
            assert event == {"type": "ping"}
        else:
            models = _BETA_EVENTS if _is_beta(event) else _EVENTS
            wire.validate(models[event["type"]], event)
    check_order([event for event in events if event["type"] != "ping"])


def check_order(events: list[Json]) -> None:
    """Check that one block is open at a time, numbered from 0, and that the message ends once."""
    first, *middle = events
    assert first["type"] == "message_start", first
    assert first["message"]["content"] == []
    if middle[-1]["type"] == "error":
        _check_blocks(middle[:-1], is_cut=True)
        return
    *blocks, delta, stop = middle
    assert (delta["type"], stop["type"]) == ("message_delta", "message_stop"), middle[-2:]
    assert delta["delta"]["stop_reason"] is not None
    _check_blocks(blocks)


def _check_blocks(events: list[Json], *, is_cut: bool = False) -> None:
    opened: Json | None = None
    count = 0
    for event in events:
        assert event["index"] == count, event
        if event["type"] == "content_block_start":
            assert opened is None, event
            opened = event["content_block"]
        elif event["type"] == "content_block_delta":
            assert opened is not None
            assert event["delta"]["type"] in _DELTAS[opened["type"]], (opened, event)
        else:
            assert event["type"] == "content_block_stop", event
            assert opened is not None
            opened = None
            count += 1
    assert opened is None or is_cut


def message_of(events: list[Json]) -> Json:
    """The whole message that a client builds from events, as the API defines it."""
    message: Json = events[0]["message"]
    partial = ""
    for event in events[1:]:
        if event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
            partial = ""
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][-1], event["delta"]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
                continue
            name = delta["type"].removesuffix("_delta")
            block[name] += delta[name]
        elif event["type"] == "content_block_stop" and partial:
            message["content"][-1]["input"] = json.loads(partial)
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    return message
