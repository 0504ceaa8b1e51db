"""A job as the body of a create request.

Instructions, items and tools are spliced in as the bytes that the client sent, unless slipring runs some of
the tools. Those are functions to the upstream, in the namespace of their server: it never gets the address of
a server, nor anything else that only slipring needs. Settings that the client did not give are left out, so
that the upstream's defaults apply.

Items have no ids of slipring's: the upstream would look up ids that it has never made. Calls and their
outputs are matched by ``call_id``: slipring's in a context that is sent whole, the upstream's in what
continues one of its responses.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from slipring.core.generation import Job
from slipring.engines.remote.http_client import spliced
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.responses.positions import CALLS, own_position, steps_of, upstream_call_id
from slipring.protocol import wire
from slipring.protocol.items.items import AdditionalTools, Item, LoadedTools
from slipring.protocol.tools.client_tools import PARAMETERS
from slipring.protocol.tools.tool_types import CLIENT_TYPES
from slipring.protocol.tools.toolset import CallableTool, Definition, Toolset, merged

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


_NAMED = frozenset(
    {
        *("message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "tool_search_call", "tool_search_output"),
    }
)
"""Items whose ids slipring makes and upstreams do not need. Other items keep their ids."""
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def added(job: Job, home: object, *, keep_reasoning: bool) -> list[bytes]:
    """The new items, for an upstream that has the others."""
    own_calls = {item.call_id for item in job.input if item.type in CALLS}
    pieces = []
    for item in job.input:
        if item.type in _OUTPUTS and item.call_id is not None and item.call_id not in own_calls:
            there = upstream_call_id(job, home, item.call_id)
            if there != item.call_id:
                pieces.append(_rewritten(item.raw, call_id=there))
                continue
        pieces += _sent(item, keep_reasoning)
    return pieces


def everything(job: Job, home: object, *, keep_reasoning: bool, keep_encrypted: bool = True) -> list[bytes]:
    """All items of the context. ``keep_encrypted``: with encrypted reasoning, as far as it was kept."""
    pieces: list[bytes] = []
    nodes = list(job.parent.chain()) if job.parent is not None else []
    for node in reversed(nodes):
        position = own_position(node.position, home)
        if position is None or not (keep_encrypted and position.step.has_thoughts):
            _add(node.added, pieces, keep_reasoning)
            continue
        prompt = node.prompt
        _add(prompt[: len(prompt) - len(node.earlier_steps)], pieces, keep_reasoning)
        for answer, outputs, step in reversed(list(steps_of(node, home))):
            if step is not None and step.thoughts:
                pieces += _with_thoughts(answer, step.thoughts)
            else:
                _add(answer, pieces, keep_reasoning)
            _add(outputs, pieces, keep_reasoning)
    _add(job.input, pieces, keep_reasoning)
    return pieces


def without_id(raw: bytes) -> bytes:
    """An item without its id; the values of all other fields keep their bytes."""
    return _rewritten(raw, id=None)


def _with_thoughts(answer: tuple[Item, ...], thoughts: tuple[tuple[int, bytes], ...]) -> Iterator[bytes]:
    """An answer, with its encrypted reasoning items at their places instead of the readable ones."""
    rest = list(thoughts)
    others = [item for item in answer if item.type != "reasoning"]
    for number, item in enumerate(others):
        while rest and rest[0][0] <= number:
            yield rest.pop(0)[1]
        yield _without_our_id(item)
    # Reasoning at the end is left out: upstreams refuse reasoning without the item that follows it.


def _add(items: tuple[Item, ...], pieces: list[bytes], keep_reasoning: bool) -> None:
    for item in items:
        if item.id is None and item.type != "reasoning":
            pieces.append(item.raw)  # most of a long context
        else:
            pieces += _sent(item, keep_reasoning)


def _sent(item: Item, keep_reasoning: bool) -> list[bytes]:
    if item.type == "reasoning" and not keep_reasoning:
        return []
    return [_without_our_id(item)]


def _without_our_id(item: Item) -> bytes:
    if item.id is None or item.type not in _NAMED:
        return item.raw
    ours = f'{{"type":"{item.type}","id":"{item.id}",'.encode()
    if item.raw.startswith(ours):
        # Encoded by slipring: cut the id out without decoding.
        return b'{"type":"' + item.type.encode() + b'",' + item.raw[len(ours) :]
    return without_id(item.raw)


def _rewritten(raw: bytes, **changes: str | None) -> bytes:
    """An item with some fields changed, or removed if None; the values of the others keep their bytes."""
    fields = _fields.decode(raw)
    for name, value in {"id": None, **changes}.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = wire.raw(value)
    return wire.encode(fields)
