"""What the bench reads of an answer, held against the API before anybody reads it.

Only the parts that are read are looked at: whether the whole is right is for ``checks`` to say.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from slipring.bench.exchange import PAUSE, TERMINAL, TIMING, Event, Exchange, Odd


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


_ITEMS: dict[str, type[Struct]] = {
    "message": _Message,
    "function_call": _Call,
    "custom_tool_call": _CustomCall,
}


def checked(exchange: Exchange) -> Exchange:
    """The same, if everything can be read. Raises ``Odd``."""
    try:
        for event in exchange.events:
            for what, shape in _shapes(event):
                msgspec.convert(what, shape)
        for item in exchange.answer:
            msgspec.convert(item, _Item)
            if shape_of := _ITEMS.get(item["type"]):
                msgspec.convert(item, shape_of)
    except msgspec.ValidationError as error:
        raise Odd(" ".join(str(error).split())) from None
    return exchange


def _shapes(event: Event) -> Iterator[tuple[Event, type[Struct]]]:
    kind = event.get("type")
    if kind in TERMINAL:
        yield event, _Terminal
    elif kind == PAUSE:
        yield event, _Pause
    elif kind == TIMING:
        yield event, _Timed
