"""A job as the body of a Chat Completions request: its messages, tools and settings.

Messages are encoded once. An assistant's reasoning, text and calls, and the outputs of these calls, form an
*exchange*. The last exchange may still grow; everything before it is never encoded again. So a context is a
chain of encoded pieces and a tail, and the same items give the same bytes however they are spread over turns.

Tools are functions with flat names, which are mapped back in answers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.core.generation import Job, Settings
from slipring.engines.chat.options import ChatOptions
from slipring.engines.chat.returned_fields import (
    NONE,
    FieldsOfContext,
    KeptFields,
    ReturnedAnswer,
    ReturnedFields,
    StoredFields,
    kept_with,
    stored_fields,
)
from slipring.engines.remote.http_client import spliced
from slipring.engines.remote.replica_affinity import affinity_key, tenant_salt
from slipring.engines.scheduling.priorities_and_hints import agent_hints
from slipring.prompts.tool_definitions import describe_found, description_of, flat_name, parameters_of
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import is_data, is_web, part_param, plain_url
from slipring.protocol.items.items import (
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
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool, FunctionTool

_STEP_BYTES = 300
# Sets of classes, not ``isinstance``: a resent history has hundreds of items, and a test that fails is slow.
_CALLS = (FunctionCall, CustomToolCall)
_OUTPUTS = frozenset({CallOutput, LoadedTools})
_SENT = _OUTPUTS | {Message, Reasoning, *_CALLS}
_object = msgspec.json.Decoder(dict[str, Raw])
_REWRITTEN = "the parent's messages were not written by this engine"


class _CalledFunction(Struct):
    name: str
    arguments: str


class _ToolCall(Struct):
    id: str
    function: _CalledFunction
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


class MessageWriter:
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
    return _ToolCall(
        short_id(call.call_id),
        _CalledFunction(name, _arguments(call)),
        extra_content=_raw(fields.extra_content),
        provider_specific_fields=_raw(fields.provider_specific_fields),
    )


def _arguments(call: FunctionCall | CustomToolCall) -> str:
    """The arguments as a JSON object. Servers decode those of a history, and many refuse the request if they
    cannot, so text that is none, as when the model was cut off, becomes the argument ``input``."""
    if isinstance(call, CustomToolCall):
        return _input(call.input)
    if not call.arguments.strip():
        return "{}"
    try:
        _object.decode(call.arguments)
    except (ValueError, RecursionError):
        return _input(call.arguments)
    return call.arguments


def _input(text: str) -> str:
    return wire.encode({"input": text}).decode()


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


Tools = tuple[CallableTool, ...]


class Toolbox(Struct, frozen=True, eq=False):
    """Encoded tools, reused while they stay the same."""

    tools: Tools
    json: bytes
    names: Mapping[str, CallableTool]
    """By the names that the model uses."""

    @property
    def size_bytes(self) -> int:
        return len(self.json) + 200 * len(self.tools)


EMPTY_TOOLBOX = Toolbox((), b"[]", {})


class _Function(Struct):
    name: str
    parameters: Any
    description: str | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class _Definition(Struct):
    function: _Function
    type: str = "function"


def toolbox(tools: Tools, before: Toolbox) -> Toolbox:
    """Encode tools, or return ``before`` if it has the same. Raises ``InvalidRequest`` if names clash."""
    if tools == before.tools:
        return before
    names = {flat_name(tool): tool for tool in tools}
    if len(names) < len(tools):
        raise InvalidRequest.at(
            "tools",
            "this model's server knows no namespaces, and two tools have the same name once"
            " namespace and name are joined by '__'",
        )
    return Toolbox(tools, wire.encode([_definition(tool) for tool in tools]), names)


def _definition(tool: CallableTool) -> _Definition:
    definition = tool.definition
    strict = isinstance(definition, FunctionTool) and definition.strict is True
    return _Definition(
        _Function(
            name=flat_name(tool),
            parameters=parameters_of(tool),
            description=description_of(tool) or UNSET,
            strict=True if strict else UNSET,
        )
    )


def offered_tools(offer: Offer) -> Tools:
    """The tools to send: those on offer, each once.

    Sending no others makes sure that the model calls no others, even if the server ignores ``tool_choice``;
    llama-server, for one, does not support a choice that names a function. The cost: when the offer changes,
    the server prefills the prompt again.
    """
    return tuple({(tool.namespace, tool.name): tool for tool in offer.tools}.values())


class Written(Struct, frozen=True, eq=False):
    """The position that the engine leaves with a response: its context as encoded messages, without the head.

    The response's own output is not included, because its call ids are assigned later. The next turn adds it.
    """

    writer: MessageWriter
    history: History
    toolbox: Toolbox
    returned: ReturnedAnswer = ReturnedAnswer()
    """What the server wants back with the response's own output."""
    kept: KeptFields | None = None
    """What it wants back with earlier answers, for the case that the messages are lost."""

    @property
    def stored(self) -> StoredFields:
        """What a store keeps of it."""
        return StoredFields(self.writer, self.kept, self.returned)

    @property
    def size_bytes(self) -> int:
        return self.history.size_bytes + self.toolbox.size_bytes + self.stored.size_bytes

    def unshared_bytes(self, earlier: object) -> int:
        """Memory of what it does not share with another position: all of it if all was encoded again."""
        if not isinstance(earlier, Written):
            return self.size_bytes
        own = self.history.size_bytes - self.history.shared_bytes(earlier.history)
        own += self.stored.unshared_bytes(earlier.stored)
        return own if self.toolbox is earlier.toolbox else own + self.toolbox.size_bytes


class Request(Struct, frozen=True):
    """The encoded request of a job, and the position to leave with its response."""

    pieces: list[bytes]
    position: Written
    has_messages: bool
    fallback: str | None
    """Why all items had to be encoded again; None if only new ones were."""


def write_request(job: Job, options: ChatOptions, writer: MessageWriter) -> Request:
    """Encode the request for a job. Raises an ``ApiError`` for what the API cannot express."""
    if job.settings.truncation == "auto":
        raise UnsupportedParameter.at("truncation", "this model's server cannot drop items that do not fit")
    before, fallback = _position(job, writer)
    kept = _kept(job, writer)
    refuse_unsendable(job.input, images=options.images, urls=options.image_urls, new=True)
    history = _write_history(job, before, options, writer, kept)
    box = toolbox(offered_tools(job.offer), before.toolbox if before is not None else EMPTY_TOOLBOX)
    messages = history.json()
    if job.head.instructions is not None:
        messages.insert(0, b'{"role":"system","content":' + bytes(job.head.instructions_json) + b"}")
    fields: dict[str, Any] = {
        "stream": True,
        **({"stream_options": {"include_usage": True}} if options.stream_usage else {}),
        **_sampling(job, options),
        **_response_format(job.settings),
    }
    if box.tools:
        if not job.settings.parallel_tool_calls:
            fields["parallel_tool_calls"] = False
        if job.offer.required:
            fields["tool_choice"] = "required"
        fields["tools"] = Raw(box.json)
    model = wire.encode(job.model.own_name or job.model.name)
    pieces = spliced(b'{"model":' + model + b',"messages":[', messages, b"]," + wire.encode(fields)[1:])
    return Request(pieces, Written(writer, history, box, kept=kept), bool(messages), fallback)


def _position(job: Job, writer: MessageWriter) -> tuple[Written | None, str | None]:
    """The parent's position, or why there is none that can be used."""
    if job.parent is None:
        return None, None
    position = job.parent.position
    if isinstance(position, Written) and position.writer is writer:
        return position, None
    return None, _REWRITTEN


def _kept(job: Job, writer: MessageWriter) -> KeptFields | None:
    """What the server wants back with the answers of the context."""
    if job.parent is None or (stored := stored_fields(job.parent.position, writer)) is None:
        return None
    return kept_with(stored.kept, job.parent.answer, stored.returned)


def _write_history(
    job: Job, before: Written | None, options: ChatOptions, writer: MessageWriter, kept: KeptFields | None
) -> History:
    if job.parent is None:
        return writer.extend(None, job.input)
    if before is not None:
        return writer.extend(before.history, job.input, answer=job.parent.answer, kept=kept)
    items = tuple(job.context())
    refuse_unsendable(items, images=options.images, urls=options.image_urls, new=False)
    return writer.extend(None, items, kept=kept)


def _sampling(job: Job, options: ChatOptions) -> dict[str, Any]:
    settings = job.settings
    asked: dict[str, Any] = {
        options.max_tokens_field: settings.max_output_tokens if job.generate else 1,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "presence_penalty": settings.presence_penalty,
        "frequency_penalty": settings.frequency_penalty,
        "seed": settings.seed,
        "logit_bias": {str(id): bias for id, bias in settings.logit_bias.items()} or None,
        "reasoning_effort": settings.effort,
        "logprobs": True if settings.logprobs else None,
        "top_logprobs": settings.top_logprobs or None,
        "prompt_cache_key": affinity_key(job) if options.send_cache_key else None,
        "cache_salt": tenant_salt(job.tenant) if options.send_cache_salt else None,
    }
    if options.hints:
        asked |= agent_hints(job, prefills=True)
    return {name: value for name, value in asked.items() if value is not None}


def _response_format(settings: Settings) -> dict[str, Any]:
    format: TextFormat = settings.format
    if format.kind == "text":
        return {}
    if format.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    described = _object.decode(bytes(format.echo))
    del described["type"]
    return {"response_format": {"type": "json_schema", "json_schema": described}}
