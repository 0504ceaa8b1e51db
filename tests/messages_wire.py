"""Validates every body and event that slipring sends to clients of the Messages API.

As `tests.wire` does for the Responses API: strictly by the anthropic package's own types, without extra keys,
and by the order of events.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

from anthropic.types import ModelInfo
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from anthropic.types.message import Message
from anthropic.types.message_tokens_count import MessageTokensCount
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from anthropic.types.shared.error_response import ErrorResponse
from anthropic.types.thread_unsupported_request_error_details import ThreadUnsupportedRequestErrorDetails
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
    wire.require(body["stop_reason"] is not None, "an end without a reason")
    return body


def check_count(body: Json) -> Json:
    wire.validate(MessageTokensCount, body)
    return body


def check_models(body: Json) -> Json:
    wire.require_equal(set(body), {"data", "has_more", "first_id", "last_id"}, "the keys of a page")
    for model in body["data"]:
        wire.validate(ModelInfo, model)
    return body


def check_error(body: Json) -> Json:
    wire.require_equal(set(body), {"type", "error", "request_id"}, "the keys of an error")
    details = body["error"].get("details")
    # Claude Code knows the first one, and not the package.
    if details is not None and details != {"error_code": "dlp_request_denied"}:
        wire.validate(ThreadUnsupportedRequestErrorDetails, details)
    if body["error"]["type"] != "request_too_large":  # the API's, although the package's types lack it
        plain = {name: value for name, value in body["error"].items() if name != "details"}
        wire.validate(ErrorResponse, {**body, "error": plain})
    return body


def check_answer(path: str, status: int, content_type: str, text: str) -> Any:
    """Check any answer of the API; returns its body, or its events."""
    if content_type == "text/event-stream":
        return read_events(text)
    body = wire.parse(text)
    if status >= 400:
        return check_error(body)
    if path.endswith("/count_tokens"):
        return check_count(body)
    if path.endswith("/models"):
        return check_models(body)
    if "/models/" in path:
        wire.validate(ModelInfo, body)
        return body
    return check_message(body)


def read_events(text: str) -> list[Json]:
    """Check a whole SSE body: framing, types and order."""
    wire.require(text.endswith("\n\n"), "an SSE body that breaks off")
    order = Order()
    events = list(read_blocks(text))
    for event in events:
        order.see(event)
    order.finish()
    return events


def read_blocks(text: str) -> Iterator[Json]:
    """The events in SSE blocks, each of the right type."""
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = wire.parse(data.removeprefix("data: "))
        wire.require_equal(name, f"event: {event['type']}", "the name of an SSE block")
        yield event


def _check_event(event: Json) -> None:
    kind = event["type"]
    if kind == "error":
        check_error(event)
    elif kind == "ping":
        wire.require_equal(event, {"type": "ping"}, "a ping")
    else:
        models = _BETA_EVENTS if _is_beta(event) else _EVENTS
        wire.validate(models[kind], event)


class Order:
    """Checks the events of one stream: one block is open at a time, blocks are numbered from 0, and the
    message ends once."""

    def __init__(self) -> None:
        self._block: str | None = None
        """The type of the open block."""
        self._blocks = 0
        self._next: tuple[str, ...] = ("message_start",)
        """The types that may follow."""
        self._announced = 0
        """The tokens of the prompt, if they were known at the start."""

    def see(self, event: Json) -> None:
        _check_event(event)
        kind = event["type"]
        if kind == "ping":
            return
        wire.require(kind in self._next, f"{kind} where one of {self._next} may follow")
        if kind == "content_block_start":
            self._block = event["content_block"]["type"]
            self._next = ("content_block_delta", "content_block_stop", "error")
        elif kind == "content_block_delta":
            allowed = _DELTAS.get(self._block or "", ())
            wire.require(event["delta"]["type"] in allowed, f"{event['delta']} in a block {self._block}")
        elif kind == "message_delta":
            usage = event["usage"]
            read = usage["input_tokens"] + usage["cache_read_input_tokens"]
            wire.require(self._announced <= read, f"{self._announced} tokens were announced, {read} read")
            wire.require(event["delta"]["stop_reason"] is not None, "an end without a reason")
            self._next = ("message_stop",)
        else:
            if kind == "message_start":
                self._announced = event["message"]["usage"]["input_tokens"]
            is_last = kind in ("message_stop", "error")
            self._next = () if is_last else ("content_block_start", "message_delta", "error")
        if kind.startswith("content_block"):
            wire.require_equal(event["index"], self._blocks, "the index of a block")
            self._blocks += kind == "content_block_stop"

    def finish(self) -> None:
        wire.require(self._next == (), "a stream that does not end")


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
            with suppress(ValueError):  # a call that was cut off
                message["content"][-1]["input"] = json.loads(partial)
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    return message
