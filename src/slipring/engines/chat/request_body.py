"""A job as the body of a Chat Completions request, spliced from messages that are encoded once. Tools are
functions with flat names, which are mapped back in answers."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.core.generation import Job, Settings
from slipring.engines.chat.messages import History, Writer, refuse_unsendable
from slipring.engines.chat.options import ChatOptions
from slipring.engines.chat.returned_fields import KeptFields, ReturnedAnswer, StoredFields, kept_with
from slipring.engines.remote.affinity import affinity_key, tenant_salt
from slipring.engines.remote.http_client import spliced
from slipring.engines.scheduling.priorities_and_hints import agent_hints
from slipring.prompts.tool_definitions import description_of, flat_name, parameters_of
from slipring.protocol import wire
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools import CallableTool, FunctionTool, Offer

Tools = tuple[CallableTool, ...]
_REWRITTEN = "the parent's messages were not written by this engine"
_fields = msgspec.json.Decoder(dict[str, Raw])


class Toolbox(Struct, frozen=True, eq=False):
    """Encoded tools, reused while they stay the same."""

    tools: Tools
    json: bytes
    names: Mapping[str, CallableTool]
    """By the names that the model uses."""

    @property
    def size_bytes(self) -> int:
        return len(self.json) + 200 * len(self.tools)


EMPTY = Toolbox((), b"[]", {})


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

    writer: Writer
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


def stored_fields(position: object, writer: Writer) -> StoredFields | None:
    """What a position of this writer's engine keeps for the server; None if it is of another."""
    stored = position.stored if isinstance(position, Written) else position
    return stored if isinstance(stored, StoredFields) and stored.home is writer else None


class Request(Struct, frozen=True):
    """The encoded request of a job, and the position to leave with its response."""

    pieces: list[bytes]
    position: Written
    has_messages: bool
    fallback: str | None
    """Why all items had to be encoded again; None if only new ones were."""


def write_request(job: Job, options: ChatOptions, writer: Writer) -> Request:
    """Encode the request for a job. Raises an ``ApiError`` for what the API cannot express."""
    if job.settings.truncation == "auto":
        raise UnsupportedParameter.at("truncation", "this model's server cannot drop items that do not fit")
    before, fallback = _position(job, writer)
    kept = _kept(job, writer)
    refuse_unsendable(job.input, images=options.images, urls=options.image_urls, new=True)
    history = _write_history(job, before, options, writer, kept)
    box = toolbox(offered_tools(job.offer), before.toolbox if before is not None else EMPTY)
    messages = history.json()
    if job.head.instructions is not None:
        messages.insert(0, b'{"role":"system","content":' + bytes(job.head.instructions_json) + b"}")
    fields: dict[str, Any] = {
        "stream": True,
        **({"stream_options": {"include_usage": True}} if options.stream_usage else {}),
        **_sampling(job, options),
        **_shape(job.settings),
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


def _position(job: Job, writer: Writer) -> tuple[Written | None, str | None]:
    """The parent's position, or why there is none that can be used."""
    if job.parent is None:
        return None, None
    position = job.parent.position
    if isinstance(position, Written) and position.writer is writer:
        return position, None
    return None, _REWRITTEN


def _kept(job: Job, writer: Writer) -> KeptFields | None:
    """What the server wants back with the answers of the context."""
    if job.parent is None or (stored := stored_fields(job.parent.position, writer)) is None:
        return None
    return kept_with(stored.kept, job.parent.answer, stored.returned)


def _write_history(
    job: Job, before: Written | None, options: ChatOptions, writer: Writer, kept: KeptFields | None
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


def _shape(settings: Settings) -> dict[str, Any]:
    format: TextFormat = settings.format
    if format.kind == "text":
        return {}
    if format.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    described = _fields.decode(bytes(format.echo))
    del described["type"]
    return {"response_format": {"type": "json_schema", "json_schema": described}}
