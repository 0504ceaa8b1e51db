"""Validates the types of those fields of an answer that the bench reads.

Whether the answer as a whole is correct is checked in ``verify``.
"""

from typing import Any

import msgspec
from msgspec import Struct

from slipring.commands.bench.client.exchange import (
    PAUSE,
    TERMINAL,
    TIMING,
    Event,
    MalformedAnswer,
    TurnExchange,
)


class _Details(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Response(Struct):
    id: str
    output: list[dict[str, Any]]
    usage: _Usage | None = None


class _Terminal(Struct):
    response: _Response


class _Pause(Struct):
    response_id: str


class _Stage(Struct):
    name: str
    duration_ms: float


class _Timing(Struct):
    stages: list[_Stage]


class _Timed(Struct):
    timing: _Timing


class _Part(Struct):
    text: str | None = None


class _Message(Struct):
    role: str
    content: str | list[_Part]


class _Call(Struct):
    call_id: str
    name: str
    arguments: str


class _CustomCall(Struct):
    call_id: str
    name: str
    input: str


class _Item(Struct):
    type: str


_EVENTS: dict[str, type[Struct]] = {**dict.fromkeys(TERMINAL, _Terminal), PAUSE: _Pause, TIMING: _Timed}
_ITEMS: dict[str, type[Struct]] = {
    "message": _Message,
    "function_call": _Call,
    "custom_tool_call": _CustomCall,
}


def validated(exchange: TurnExchange) -> TurnExchange:
    """Return the exchange if all fields have the right types. Raises ``MalformedAnswer``."""
    try:
        for event in exchange.events:
            if shape := _shape(event):
                msgspec.convert(event, shape)
        for item in exchange.answer:
            msgspec.convert(item, _Item)
            if shape := _ITEMS.get(item["type"]):
                msgspec.convert(item, shape)
    except msgspec.ValidationError as error:
        raise MalformedAnswer(" ".join(str(error).split())) from None
    return exchange


def _shape(event: Event) -> type[Struct] | None:
    return _EVENTS.get(str(event.get("type")))
