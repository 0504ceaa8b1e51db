"""A job as the body of a create request.

Instructions, items and tools are spliced in as the bytes that the client sent, unless slipring runs some of
the tools. Those are functions to the upstream, in the namespace of their server: it never gets the address of
a server, nor anything else that only slipring needs. Settings that the client did not give are left out, so
that the upstream's defaults apply.
"""

import msgspec
from msgspec import Raw, Struct

from slipring.core.generation import Job
from slipring.engines.remote.http_client import spliced
from slipring.engines.responses.options import ResponsesOptions
from slipring.protocol import wire
from slipring.protocol.client_tools import PARAMETERS
from slipring.protocol.hosted.tool_types import CLIENT_TYPES
from slipring.protocol.items import AdditionalTools, LoadedTools
from slipring.protocol.tools import CallableTool, Definition, Toolset, merged

_tools = msgspec.json.Decoder(list[Raw])
_BY_TYPE = frozenset({"tool_search", *PARAMETERS})
"""Tools that ``tool_choice`` names by their type. Those that slipring runs are functions to the upstream."""
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"


class _Kind(Struct):
    type: str


class _Named(Struct):
    name: str = ""


class _Entry(Struct):
    type: str
    name: str = ""
    tools: list[_Named] = []
    server_label: str = ""
    server_description: str | None = None

    def names(self) -> set[tuple[str | None, str]]:
        """The tools that it defines, by namespace and name."""
        if self.type == "namespace":
            return {(self.name, tool.name) for tool in self.tools}
        return {(None, self.name or self.type)}


_kinds = msgspec.json.Decoder(list[_Kind])
_entry = msgspec.json.Decoder(_Entry)


def sent_tools(job: Job) -> bytes:
    """The ``tools`` of a request to the upstream, as JSON."""
    if job.upstream_tools is not None:
        return job.upstream_tools.tools
    return client_tools(job.head.tools)


def client_tools(tools: Toolset) -> bytes:
    """The tools as sent, if the client runs all of them; else with functions in place of the others."""
    if tools.are_clients or all(kind.type in CLIENT_TYPES for kind in _kinds.decode(tools.raw)):
        return tools.raw
    kept: list[object] = []
    defined: set[tuple[str | None, str]] = set()
    described: dict[str | None, str] = {}
    for raw in _tools.decode(tools.raw):
        entry = _entry.decode(raw)
        if entry.type in CLIENT_TYPES:
            kept.append(raw)
            defined |= entry.names()
        elif entry.server_description:
            described[entry.server_label] = entry.server_description
    hosted: dict[str | None, list[Definition]] = {}
    for tool in tools.callables:
        if (tool.namespace, tool.name) not in defined:
            hosted.setdefault(tool.namespace, []).append(tool.definition)
    kept += hosted.pop(None, [])
    for namespace, definitions in hosted.items():
        description = described.get(namespace, f"Tools of the server {namespace}.")
        kept.append(
            {"type": "namespace", "name": namespace, "description": description, "tools": definitions}
        )
    return wire.encode(kept)


def create_body(
    job: Job,
    model: str,
    options: ResponsesOptions,
    items: list[bytes],
    *,
    opening: dict[str, object],
    previous_id: str | None = None,
) -> list[bytes]:
    """The request in pieces. ``opening`` are fields that the transport adds; they come first."""
    fields = {**opening, "model": model, "store": options.chain}
    if previous_id is not None:
        fields["previous_response_id"] = previous_id
    if not job.generate:
        fields["generate"] = False
    fields |= _settings(job, options)
    if job.cache_key is not None:
        fields["prompt_cache_key"] = job.cache_key
    tools = sent_tools(job)
    choice = _tool_choice(job, has_tools=tools != b"[]")
    if choice is not None:
        fields["tool_choice"] = choice
    return _with_context(job, fields, tools, items)


def count_body(job: Job, model: str, items: list[bytes]) -> list[bytes]:
    """The request for a token count in pieces: model, instructions, tools and items."""
    return _with_context(job, {"model": model}, sent_tools(job), items)


def _with_context(job: Job, fields: dict[str, object], tools: bytes, items: list[bytes]) -> list[bytes]:
    head = [wire.encode(fields)[:-1]]
    if job.head.instructions is not None:
        head.append(b',"instructions":' + bytes(job.head.instructions_json))
    if tools != b"[]":
        head.append(b',"tools":' + tools)
    head.append(b',"input":[')
    return spliced(b"".join(head), items, b"]}")


def _settings(job: Job, options: ResponsesOptions) -> dict[str, object]:
    settings = job.settings
    asked: dict[str, object] = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "presence_penalty": settings.presence_penalty,
        "frequency_penalty": settings.frequency_penalty,
        "seed": settings.seed,
        "top_logprobs": settings.top_logprobs or None,
        "parallel_tool_calls": None if settings.parallel_tool_calls else False,
        "max_tool_calls": settings.max_tool_calls,
        "truncation": "auto" if settings.truncation == "auto" else None,
        "text": {"format": settings.format.echo} if settings.format.kind != "text" else None,
        "reasoning": _given(
            {
                "effort": settings.effort,
                "summary": options.summary or None,
                "context": settings.reasoning_context,
            }
        )
        or None,
        "include": _include(job, options) or None,
    }
    return _given(asked)


def _given(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _include(job: Job, options: ResponsesOptions) -> list[str]:
    wanted = {_LOGPROBS: job.settings.logprobs, _ENCRYPTED: options.reasoning == "encrypted"}
    of_tools = job.upstream_tools.include if job.upstream_tools is not None else ()
    return [*(name for name, is_wanted in wanted.items() if is_wanted), *of_tools]


def _available(job: Job) -> tuple[CallableTool, ...]:
    """All tools of the context, whatever ``tool_choice`` selects."""
    added = [job.parent.carry.tools] if job.parent is not None else []
    for item in job.input:
        if item.type in ("additional_tools", "tool_search_output"):
            body = item.body()
            assert isinstance(body, AdditionalTools | LoadedTools)
            added.append(Toolset.brought(body.tools).callables)
    return merged(job.head.tools.callables, *added)


def _tool_choice(job: Job, *, has_tools: bool) -> object:
    """The ``tool_choice`` that narrows the available tools to the job's offer; None if the default does."""
    offer, available, upstream = job.offer, _available(job), job.upstream_tools
    if offer.forbidden:
        return "none" if available or has_tools else None
    if upstream is not None:
        return Raw(upstream.choice) if upstream.choice is not None else None
    if not available:
        return None
    if not offer.tools:
        return "none"
    if len(offer.tools) == len(available) and not (offer.narrowed and has_tools):
        return "required" if offer.required else None
    named = list(map(_named, offer.tools))
    if offer.required and len(named) == 1 and offer.tools[0].kind != "tool_search":
        return named[0]
    return {"type": "allowed_tools", "mode": "required" if offer.required else "auto", "tools": named}


def _named(tool: CallableTool) -> dict[str, object]:
    """A tool as ``tool_choice`` refers to it."""
    if tool.kind in _BY_TYPE:
        return {"type": tool.kind}
    kind = "custom" if tool.kind == "custom" else "function"
    return _given({"type": kind, "name": tool.name, "namespace": tool.namespace})
