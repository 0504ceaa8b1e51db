"""Encodes items as the messages of Chat Completions, each once.

An assistant's reasoning, text and calls, and the outputs of these calls, form an *exchange*. The last
exchange may still grow; everything before it is never encoded again. So a context is a chain of encoded
pieces and a tail, and the same items give the same bytes however they are spread over turns.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter
from slipring.engines.chat.returned_fields import NONE, FieldsOfContext, KeptFields, ReturnedFields
from slipring.prompts.tool_definitions import describe_found
from slipring.protocol import wire
from slipring.protocol.items import (
    Body,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputFile,
    InputImage,
    Item,
    LoadedTools,
    Message,
    Part,
    Reasoning,
    may_have_images,
    plain_text,
    short_id,
)
from slipring.protocol.pictures.item_pictures import is_data, is_web, part_param, plain_url

_STEP_BYTES = 300
# Sets of classes, not ``isinstance``: a resent history has hundreds of items, and a test that fails is slow.
_CALLS = (FunctionCall, CustomToolCall)
_OUTPUTS = frozenset({CallOutput, LoadedTools})
_SENT = _OUTPUTS | {Message, Reasoning, *_CALLS}


class _Function(Struct):
    name: str
    arguments: str


class _ToolCall(Struct):
    id: str
    function: _Function
    type: str = "function"
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET


class _ImageUrl(Struct):
    url: str
    detail: str | UnsetType = UNSET


class _ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: _ImageUrl


class _TextPart(Struct, tag_field="type", tag="text"):
    text: str


Content = str | list[_TextPart | _ImagePart]


class _ChatMessage(Struct):
    role: str
    content: Content | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_ToolCall] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    reasoning_details: Raw | UnsetType = UNSET
    extra_content: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET


class History(Struct, frozen=True, eq=False):
    """The messages of a context: those of one step, and a pointer to the earlier ones."""

    before: "History | None"
    pieces: tuple[bytes, ...]
    """JSON of this step's messages that are final, without brackets."""
    tail: tuple[Item, ...]
    """The exchange that may still grow."""
    tail_json: bytes
    size_bytes: int

    def shared_bytes(self, earlier: "History") -> int:
        """The memory of ``earlier`` if this history continues it, else 0. Takes time proportional to the
        steps after it: sizes grow from step to step."""
        node = self
        while node.before is not None and node.size_bytes > earlier.size_bytes:
            node = node.before
        return earlier.size_bytes if node is earlier else 0

    def json(self) -> list[bytes]:
        """All messages, oldest first, as pieces to be joined by commas."""
        steps: list[History] = []
        node: History | None = self
        while node is not None:
            steps.append(node)
            node = node.before
        pieces = [piece for step in reversed(steps) for piece in step.pieces]
        return [*pieces, self.tail_json] if self.tail_json else pieces


class Writer:
    """Encodes messages for one server. Histories of one writer cannot be extended by another."""

    def __init__(self, *, send_reasoning: bool = False) -> None:
        self._send_reasoning = send_reasoning

    def extend(
        self,
        before: History | None,
        items: Iterable[Item],
        *,
        answer: Sequence[Item] = (),
        kept: KeptFields | None = None,
    ) -> History:
        """Append an answer of the server and other items to a history; encodes only these, and the exchange
        that they extend. ``kept``: what the server wants back with the answers of the context."""
        tail = before.tail if before is not None else ()
        units = list(_units((*tail, *answer, *items)))
        # Each answer of the tail has an item there.
        fields = FieldsOfContext.of(kept, None if before is None else len(tail) + 1)
        written = [b""] * len(units)
        first = 0
        if before is not None and tail and len(units[0].items) == len(tail):
            written[0], first = before.tail_json, 1
        for number in range(first, len(units)):
            written[number] = self._write(units[number], fields)
        own = _STEP_BYTES + sum(map(len, written[first:]))
        ends_open = bool(units) and units[-1].is_exchange
        return History(
            before=before,
            pieces=tuple(filter(None, written[:-1] if ends_open else written)),
            tail=tuple(units[-1].items) if ends_open else (),
            tail_json=written[-1] if ends_open else b"",
            size_bytes=own + (before.size_bytes if before is not None else 0),
        )

    def _write(self, unit: "_Unit", fields: FieldsOfContext) -> bytes:
        messages = self._exchange(unit, fields) if unit.is_exchange else list(_message(unit.bodies[0]))
        return wire.encode(messages)[1:-1]

    def _exchange(self, unit: "_Unit", fields: FieldsOfContext) -> list[_ChatMessage]:
        """One assistant message and the outputs of its calls.

        Calls without an output in the exchange are left out, because servers refuse them: they were cut off,
        or their output comes later. A late output becomes a user message, the only role that servers accept
        there.
        """
        bodies = unit.bodies
        outputs = [body for body in bodies if isinstance(body, CallOutput)]
        answered = {output.call_id for output in outputs}
        calls = {
            body.call_id: body for body in bodies if isinstance(body, _CALLS) and body.call_id in answered
        }
        return [
            *self._assistant_message(
                bodies,
                [_tool_call(call, fields.calls.get(call.call_id, NONE)) for call in calls.values()],
                fields.of_message(unit.items),
            ),
            *(_tool_message(output) for output in outputs if output.call_id in calls),
            *(_late_output(output) for output in outputs if output.call_id not in calls),
            *(message for output in outputs for message in _images(output)),
        ]

    def _assistant_message(
        self,
        bodies: Sequence[Body],
        called: list[_ToolCall],
        fields: ReturnedFields,
    ) -> Iterator[_ChatMessage]:
        text = "\n".join(filter(None, (plain_text(b.content) for b in bodies if isinstance(b, Message))))
        thought = ""
        if self._send_reasoning:
            thoughts = (b.thought for b in bodies if isinstance(b, Reasoning))
            thought = "\n".join(filter(None, thoughts))
        if text or thought or called:
            yield _ChatMessage(
                role="assistant",
                content=text or (None if called else ""),
                reasoning_content=thought or UNSET,
                tool_calls=called or UNSET,
                reasoning_details=_raw(fields.reasoning_details),
                extra_content=_raw(fields.extra_content),
                provider_specific_fields=_raw(fields.provider_specific_fields),
            )


class _Unit(Struct):
    """Items that are encoded together: one user or system message, or an exchange."""

    items: list[Item]
    bodies: list[Body]
    is_exchange: bool

    def takes(self, body: Body) -> bool:
        """Whether an item belongs to this exchange. Assistant items after outputs begin another."""
        if not self.is_exchange or _is_user_side(body):
            return False
        return type(body) in _OUTPUTS or type(self.bodies[-1]) not in _OUTPUTS


def _units(items: Iterable[Item]) -> Iterator[_Unit]:
    unit: _Unit | None = None
    for item in items:
        body = item.body()
        if type(body) not in _SENT:
            continue  # tools and settings are fields of the request; other items are not for models
        if unit is not None and unit.takes(body):
            unit.items.append(item)
            unit.bodies.append(body)
            continue
        if unit is not None:
            yield unit
        unit = _Unit([item], [body], not _is_user_side(body))
    if unit is not None:
        yield unit


def _is_user_side(body: Body) -> bool:
    return type(body) is Message and body.role != "assistant"


def _message(body: Body) -> Iterator[_ChatMessage]:
    assert isinstance(body, Message)
    # Few servers support the developer role; all support system.
    yield _ChatMessage(role="user" if body.role == "user" else "system", content=_content(body.content))


def _content(content: str | list[Part]) -> Content:
    """Content as one string, or as parts if there are images."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return plain_text(content)
    return [
        _image(part) if isinstance(part, InputImage) else _TextPart(plain_text((part,))) for part in content
    ]


def _image(part: InputImage) -> _ImagePart:
    return _ImagePart(_ImageUrl(plain_url(part.image_url or ""), part.detail or UNSET))


def _raw(json: bytes) -> Raw | UnsetType:
    return Raw(json) if json else UNSET


def _tool_call(call: FunctionCall | CustomToolCall, fields: ReturnedFields) -> _ToolCall:
    name = f"{call.namespace}__{call.name}" if call.namespace else call.name
    if isinstance(call, CustomToolCall):
        arguments = wire.encode({"input": call.input}).decode()
    else:
        arguments = call.arguments if call.arguments.strip() else "{}"
    return _ToolCall(
        short_id(call.call_id),
        _Function(name, arguments),
        extra_content=_raw(fields.extra_content),
        provider_specific_fields=_raw(fields.provider_specific_fields),
    )


def _tool_message(output: CallOutput) -> _ChatMessage:
    text = describe_found(output) if isinstance(output, LoadedTools) else plain_text(output.output)
    return _ChatMessage(role="tool", content=text, tool_call_id=short_id(output.call_id))


def _late_output(output: CallOutput) -> _ChatMessage:
    text = f"The output of an earlier tool call:\n{plain_text(output.output)}"
    return _ChatMessage(role="user", content=text)


def _images(output: CallOutput) -> Iterator[_ChatMessage]:
    """Images of a tool output as a user message: tool messages are text only."""
    if isinstance(output.output, str):
        return
    images = [part for part in output.output if isinstance(part, InputImage)]
    if images:
        lead = _TextPart(f"Returned by the tool call {short_id(output.call_id)}:")
        yield _ChatMessage(role="user", content=[lead, *map(_image, images)])


def refuse_unsendable(items: Iterable[Item], *, images: bool, urls: bool, new: bool) -> None:
    """Raise ``UnsupportedParameter`` for files and images that cannot be sent. ``images``: the server takes
    images; ``urls``: also by the URLs of other servers. ``new``: the items are the request's own, and the
    error names their place in it."""
    for index, item in enumerate(items):
        if not may_have_images(item):
            continue
        body = item.body()
        if isinstance(body, Message):
            parts = body.content
        elif isinstance(body, CallOutput):
            parts = body.output
        else:
            continue
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            param = part_param(item, index, place) if new else "previous_response_id"
            _refuse_part(part, images, urls, param)


def _refuse_part(part: Part, can_show: bool, urls: bool, param: str) -> None:
    if isinstance(part, InputFile):
        raise UnsupportedParameter("Files are not supported by this model's server.", param=param)
    if not isinstance(part, InputImage):
        return
    if not can_show:
        raise UnsupportedParameter(
            "This model's server takes images only if it is configured to.", param=param
        )
    url = part.image_url or ""
    if not is_data(url) and not (urls and is_web(url)):
        kinds = "a data URL or an http(s) URL" if urls else "a data URL"
        raise UnsupportedParameter(
            f"This model's server takes images only as 'image_url' with {kinds}.", param=param
        )
