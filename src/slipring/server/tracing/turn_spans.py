"""The spans of a turn, made from its report after it has ended: one for the turn, with its attributes and, if
that is switched on, its content; one for each stage.

The spans are built as the SDK's own exporters read them, not by its tracer, which is made for code that runs
between the start and the end of a span, and takes several times as long.

The ``gen_ai`` names are those of ``docs/gen-ai/client-inference.md`` in the repository
open-telemetry/semantic-conventions-genai at commit ac48b1f9df15fdf281b96cccf15eb707e1fc1868, where their
status is Development. ``error.type`` and ``service.…`` are from the semantic conventions 1.44.0. The GenAI
conventions describe the client's span and define none for a server: the span of a turn has the same
attributes, and is of kind SERVER. Names that begin with ``slipring.`` are our own.

The content of a turn is that of the messages of the GenAI conventions: its new items only, not those of the
responses before it, whose spans have them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from slipring import __version__
from slipring.protocol.items.items import (
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputFile,
    InputImage,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
)
from slipring.protocol.turn_report import TurnReport
from slipring.server.observation.ended_turns import EndedTurn, TurnContent

MOST_BYTES = 65_536
"""Of the JSON of the items of an input, of those of an output, and of instructions: for each."""
_MOST_ITEMS = 256
_SCOPE = InstrumentationScope("slipring", __version__)
_ERRORS = frozenset({"failed", "refused"})
_STREAMS = frozenset({"websocket", "sse"})
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_ids = RandomIdGenerator()


class Excerpt(Struct, frozen=True):
    """What fits of the content of a turn."""

    instructions: str | None
    input: list[Item]
    output: list[Item]
    omitted: int
    """Items that were left out; instructions count as one."""
    size_bytes: int


def excerpt(content: TurnContent) -> Excerpt:
    """The latest items that fit, without decoding any. Those that are too long for the room are left out."""
    instructions = content.request.instructions
    told = len(instructions) if instructions is not None else 0  # characters: encoding it would copy it
    given, given_bytes = _latest(content.input)
    made, made_bytes = _latest(content.output)
    return Excerpt(
        instructions=instructions if told <= MOST_BYTES else None,
        input=given,
        output=made,
        omitted=len(content.input) - len(given) + len(content.output) - len(made) + (told > MOST_BYTES),
        size_bytes=given_bytes + made_bytes + (told if told <= MOST_BYTES else 0),
    )


def _latest(items: Sequence[Item]) -> tuple[list[Item], int]:
    chosen: list[Item] = []
    room = MOST_BYTES
    for item in reversed(items[-_MOST_ITEMS:]):
        if len(item.raw) <= room:
            room -= len(item.raw)
            chosen.append(item)
    chosen.reverse()
    return chosen, MOST_BYTES - room


class TracedTurn(Struct, frozen=True):
    """An ended turn that is sampled, and the place of its span among others."""

    turn: EndedTurn
    span: SpanContext
    parent: SpanContext | None
    """The span of the client."""
    previous: SpanContext | None
    """The span of the response that this one continues."""
    ended_ns: int
    """Unix time, by the clock that other services have too."""
    said: Excerpt | None = None

    @property
    def span_count(self) -> int:
        return 1 + len(self.turn.report.stages)


def new_context(trace_id: int | None = None) -> SpanContext:
    """The context of a new sampled span, in this trace or in a new one."""
    trace_id = trace_id or _ids.generate_trace_id()
    return SpanContext(trace_id, _ids.generate_span_id(), is_remote=False, trace_flags=_SAMPLED)


def spans_of(traced: TracedTurn, resource: Resource) -> Iterator[ReadableSpan]:
    """The span of a turn, then those of its stages, which lie within it."""
    turn = traced.turn
    report, ended = turn.report, traced.ended_ns
    started = ended - _ns(report.total_ms)
    attributes = _attributes(turn)
    if traced.said is not None:
        attributes |= _said(traced.said)
    links: list[Link] = []
    if traced.previous is not None:
        links.append(Link(traced.previous, {"slipring.link": "previous_response"}))
    yield ReadableSpan(
        name="chat" if report.model is UNSET else f"chat {report.model}",
        context=traced.span,
        parent=traced.parent,
        resource=resource,
        attributes=attributes,
        links=links,
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR if report.status in _ERRORS else StatusCode.UNSET),
        start_time=started,
        end_time=ended,
        instrumentation_scope=_SCOPE,
    )
    for stage in list(report.stages):
        begin = min(started + _ns(stage.start_ms), ended)
        yield ReadableSpan(
            name=stage.name,
            context=new_context(traced.span.trace_id),
            parent=traced.span,
            resource=resource,
            start_time=begin,
            end_time=min(begin + _ns(stage.duration_ms), ended),  # both are rounded
            instrumentation_scope=_SCOPE,
        )


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def _attributes(turn: EndedTurn) -> dict[str, AttributeValue]:
    report, origin, caller = turn.report, turn.origin, turn.caller
    attributes: dict[str, object] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "slipring",
        "gen_ai.request.model": report.model,
        "gen_ai.response.model": report.model,
        "gen_ai.response.id": report.response_id,
        "gen_ai.request.previous_response.id": _encodable(report.previous_response_id),
        "gen_ai.request.stream": True if origin.transport in _STREAMS else UNSET,
        "gen_ai.conversation.compacted": True if "compaction" in (report.marks or ()) else UNSET,
        "error.type": _error_type(report),
        "slipring.status": report.status,
        "slipring.transport": origin.transport,
        "slipring.api": origin.api,
        "slipring.connection": origin.connection or UNSET,
        "slipring.lane": UNSET if turn.lane is None else _encodable(turn.lane),
        "slipring.tenant": UNSET if caller.is_guest else caller.tenant,
        "slipring.key.id": UNSET if caller.key is None else caller.key.id,
        "slipring.marks": report.marks,
        "slipring.fallback": report.fallback,
        "slipring.request_bytes": report.request_bytes,
        "slipring.history_bytes": report.history_bytes,
        "slipring.input_items": report.input_items,
        "slipring.recognised_items": report.recognised_items,
        "slipring.dropped_items": report.dropped_items,
        "slipring.send_ms": report.send_ms,
    }
    if (tokens := report.tokens) is not UNSET:
        attributes |= {
            "gen_ai.usage.input_tokens": tokens.input,
            "gen_ai.usage.cache_read.input_tokens": tokens.cached,
            "gen_ai.usage.output_tokens": tokens.output,
            "gen_ai.usage.reasoning.output_tokens": tokens.reasoning,
            "slipring.rendered_tokens": tokens.rendered,
        }
    return {name: value for name, value in attributes.items() if value is not UNSET}  # type: ignore[misc]


def _error_type(report: TurnReport) -> object:
    if report.error_code:
        return report.error_code
    return report.status if report.status in _ERRORS or report.status == "cancelled" else UNSET


def _said(said: Excerpt) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if said.instructions is not None:
        attributes["gen_ai.system_instructions"] = instructions_json(said.instructions)
    if said.input:
        attributes["gen_ai.input.messages"] = input_json(said.input)
    if said.output:
        attributes["gen_ai.output.messages"] = output_json(said.output)
    if said.omitted:
        attributes["slipring.content.omitted_items"] = said.omitted
    return attributes


def _encodable(text: object) -> object:
    """Text of a client without what UTF-8 cannot encode, which would fail the whole batch."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


def instructions_json(text: str) -> str:
    """The value of ``gen_ai.system_instructions``."""
    return _json([_text(text)])


def input_json(items: Iterable[Item]) -> str:
    """The value of ``gen_ai.input.messages``: one message for each item."""
    messages = []
    for item in items:
        role, parts = _message(item, "user")
        messages.append({"role": role, "parts": parts})
    return _json(messages)


def output_json(items: Iterable[Item]) -> str:
    """The value of ``gen_ai.output.messages``: one message, because a response is one choice."""
    return _json([{"role": "assistant", "parts": [part for item in items for part in _message(item, "")[1]]}])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _message(item: Item, author: str) -> tuple[str, list[dict[str, Any]]]:
    """The role and the parts of an item. ``author``: the role of items that have none by their type."""
    body = item.body()
    if isinstance(body, Message):
        return body.role, _parts(body.content)
    if isinstance(body, FunctionCall):
        return "assistant", [_call(body, _decoded(body.arguments))]
    if isinstance(body, CustomToolCall):
        return "assistant", [_call(body, body.input)]
    if isinstance(body, CallOutput):
        answer = body.output if isinstance(body.output, str) else _parts(body.output)
        return "tool", [{"type": "tool_call_response", "id": body.call_id, "response": answer}]
    if isinstance(body, Reasoning):
        thought = body.thought or "".join(part.text for part in body.summary)
        return "assistant", [{"type": "reasoning", "content": thought}]
    return author, [{"type": item.type}]


def _call(call: FunctionCall | CustomToolCall, arguments: object) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": arguments}


def _decoded(arguments: str) -> object:
    """Arguments as JSON, or as they are: a model may write anything."""
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _parts(content: str | list[Part]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, InputImage):
        return _attached("image", part.file_id, part.image_url)
    if isinstance(part, InputFile):
        return _attached("document", part.file_id, part.file_url or part.file_data)
    if isinstance(part, Refusal):
        return {"type": "refusal", "content": part.refusal}
    return _text(part.text)


def _attached(modality: str, file_id: str | None, url: str | None) -> dict[str, Any]:
    """A file by its id or its URL; bytes that were sent within the item."""
    if file_id is not None:
        return {"type": "file", "modality": modality, "file_id": file_id}
    head, comma, encoded = (url or "").partition(",")
    if comma and head.startswith("data:"):
        kind = head.removeprefix("data:").partition(";")[0]
        return {"type": "blob", "modality": modality, "mime_type": kind, "content": encoded}
    return {"type": "uri", "modality": modality, "uri": url or ""}
