"""Requests of the Messages API, as typed data. Unknown fields pass; errors name the field."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.messages.tools import Choice

_OptionalRaw = Raw | UnsetType


class ThinkingEnabled(Struct, tag_field="type", tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Literal["summarized", "omitted", "updates"] | None = None


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive"):
    display: Literal["summarized", "omitted", "updates"] | None = None


class ThinkingBetweenTools(Struct, tag_field="type", tag="between_tools"): ...


class ThinkingDisabled(Struct, tag_field="type", tag="disabled"): ...


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled


class JsonFormat(Struct):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: _OptionalRaw = msgspec.UNSET


class UserMetadata(Struct):
    user_id: Annotated[str, Meta(max_length=4096)] | None = None


class CountRequest(Struct, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``."""

    model: str
    messages: Raw
    system: _OptionalRaw = msgspec.UNSET
    tools: _OptionalRaw = msgspec.UNSET
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    mcp_servers: _OptionalRaw = msgspec.UNSET
    context_management: _OptionalRaw = msgspec.UNSET
    container: _OptionalRaw = msgspec.UNSET
    fallbacks: _OptionalRaw = msgspec.UNSET
    thread: _OptionalRaw = msgspec.UNSET
    compaction: _OptionalRaw = msgspec.UNSET
    stop_sequences: _OptionalRaw = msgspec.UNSET
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    metadata: UserMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: Annotated[int, Meta(ge=0)]


class Edit(Struct):
    type: str
    keep: _OptionalRaw = msgspec.UNSET


class Edits(Struct):
    edits: list[Edit] = []


class _Turns(Struct):
    type: str


_create = msgspec.json.Decoder(MessagesRequest)
_count = msgspec.json.Decoder(CountRequest)
_edits = msgspec.json.Decoder(Edits)
_keep = msgspec.json.Decoder(str | _Turns)
_REFUSED = ("container", "fallbacks", "compaction")
UNTHREADED = "thread_unsupported_request"
"""The code by which clients know that they have to send their whole history."""


def read_create(body: bytes) -> CountRequest:
    """Decode a request for an answer."""
    return _checked(wire.decode(_create, body))


def read_count(body: bytes) -> CountRequest:
    """Decode a request for the number of tokens."""
    return _checked(wire.decode(_count, body))


def _checked(request: CountRequest) -> CountRequest:
    for name in _REFUSED:
        if wire.given(getattr(request, name)) is not None:
            raise UnsupportedParameter.at(name, "not supported by this server")
    if wire.given(request.thread) is not None:
        raise UnsupportedParameter.at(
            "thread",
            "not supported by this server. Send the whole conversation: what was sent before is recognised",
            code=UNTHREADED,
        )
    if request.output_config is not None and wire.given(request.output_config.task_budget) is not None:
        raise UnsupportedParameter.at("output_config.task_budget", "not supported by this server")
    _check_edits(request.context_management)
    return request


def read_edits(data: Raw | UnsetType) -> list[Edit]:
    sent = wire.given(data)
    if sent is None:
        return []
    wire.require_short(sent, "context_management")
    return wire.decode(_edits, sent, where="context_management").edits


def _check_edits(data: Raw | UnsetType) -> None:
    """Refuse edits of the context other than the one that keeps all thoughts: nothing here makes them."""
    for index, edit in enumerate(read_edits(data)):
        where = f"context_management.edits[{index}]"
        if edit.type != "clear_thinking_20251015":
            raise UnsupportedParameter.at(
                f"{where}.type", f"{quoted(edit.type)} is not supported by this server"
            )
        kept = wire.given(edit.keep)
        found = None if kept is None else wire.decode(_keep, kept, where=f"{where}.keep")
        if (found if isinstance(found, str) or found is None else found.type) != "all":
            raise UnsupportedParameter.at(f"{where}.keep", "only 'all' is supported: no thinking is cleared")
