"""Checks the types of those fields of an answer that the bench reads."""

from types import GenericAlias
from typing import Any, get_args

import msgspec
from msgspec import defstruct

from slipring.commands.bench.client.exchange import PAUSE, TERMINAL, TIMING, MalformedAnswer, TurnExchange


def _shape(**types: Any) -> Any:
    """The type of an object with fields of these types. Those that may be null may be missing."""
    fields = [
        (name, each, None) if type(None) in get_args(each) else (name, each) for name, each in types.items()
    ]
    return defstruct("Shape", fields, kw_only=True)


def _list_of(shape: Any) -> Any:
    return GenericAlias(list, (shape,))


_COUNT = int | None
_DETAILS = _shape(cached_tokens=_COUNT, reasoning_tokens=_COUNT) | None
_USAGE = _shape(
    **dict.fromkeys(("input_tokens", "output_tokens"), _COUNT),
    **dict.fromkeys(("input_tokens_details", "output_tokens_details"), _DETAILS),
)
_RESPONSE = _shape(id=str, output=list[dict[str, Any]], usage=_USAGE | None)
_EVENTS = {
    **dict.fromkeys(TERMINAL, _shape(response=_RESPONSE)),
    PAUSE: _shape(response_id=str),
    TIMING: _shape(timing=_shape(stages=_list_of(_shape(name=str, duration_ms=float)))),
}
_ITEMS = {
    "message": _shape(role=str, content=str | _list_of(_shape(text=str | None))),
    "function_call": _shape(call_id=str, name=str, arguments=str),
    "custom_tool_call": _shape(call_id=str, name=str, input=str),
}
_ANY_ITEM = _shape(type=str)
"""What the bench reads of events, and of items by their type."""


def validated(exchange: TurnExchange) -> TurnExchange:
    """Return the exchange if all fields have the right types. Raises ``MalformedAnswer``."""
    try:
        for event in exchange.events:
            if (shape := _EVENTS.get(str(event.get("type")))) is not None:
                msgspec.convert(event, shape)
        for item in exchange.answer:
            msgspec.convert(item, _ANY_ITEM)
            if (shape := _ITEMS.get(item["type"])) is not None:
                msgspec.convert(item, shape)
    except msgspec.ValidationError as error:
        raise MalformedAnswer(" ".join(str(error).split())) from None
    return exchange
