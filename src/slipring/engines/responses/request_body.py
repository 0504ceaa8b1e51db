"""A job as the body of a create request.

Instructions, tools and items are spliced in as the bytes that the client sent. Settings that the client did
not give are left out, so that the upstream's defaults apply.
"""

from slipring.core.generation import Job, Settings
from slipring.engines.remote.http_client import spliced
from slipring.engines.responses.options import ResponsesOptions
from slipring.protocol import wire
from slipring.protocol.items import AdditionalTools, LoadedTools
from slipring.protocol.tools import CallableTool, Offer, Toolset, merged

_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"


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
    fields |= _settings(job.settings, options)
    if job.cache_key is not None:
        fields["prompt_cache_key"] = job.cache_key
    choice = _tool_choice(job.offer, _available(job), hosted=job.head.tools.raw != b"[]")
    if choice is not None:
        fields["tool_choice"] = choice
    return _with_context(job, fields, items)


def count_body(job: Job, model: str, items: list[bytes]) -> list[bytes]:
    """The request for a token count in pieces: model, instructions, tools and items."""
    return _with_context(job, {"model": model}, items)


def _with_context(job: Job, fields: dict[str, object], items: list[bytes]) -> list[bytes]:
    head = [wire.encode(fields)[:-1]]
    if job.head.instructions is not None:
        head.append(b',"instructions":' + bytes(job.head.instructions_json))
    if job.head.tools.raw != b"[]":
        head.append(b',"tools":' + job.head.tools.raw)
    head.append(b',"input":[')
    return spliced(b"".join(head), items, b"]}")


def _settings(settings: Settings, options: ResponsesOptions) -> dict[str, object]:
    asked: dict[str, object] = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "presence_penalty": settings.presence_penalty,
        "frequency_penalty": settings.frequency_penalty,
        "seed": settings.seed,
        "top_logprobs": settings.top_logprobs or None,
        "parallel_tool_calls": None if settings.parallel_tool_calls else False,
        "max_tool_calls": settings.max_tool_calls,
        "truncation": "auto" if settings.truncation == "auto" else None,
        "text": {"format": settings.format.echo} if settings.format.kind != "text" else None,
        "reasoning": _given({"effort": settings.effort, "summary": options.summary or None}) or None,
        "include": _include(settings, options) or None,
    }
    return _given(asked)


def _given(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _include(settings: Settings, options: ResponsesOptions) -> list[str]:
    wanted = {_LOGPROBS: settings.logprobs, _ENCRYPTED: options.reasoning == "encrypted"}
    return [name for name, is_wanted in wanted.items() if is_wanted]


def _available(job: Job) -> tuple[CallableTool, ...]:
    """All tools of the context, whatever ``tool_choice`` selects."""
    added = [job.parent.carry.tools] if job.parent is not None else []
    for item in job.input:
        if item.type in ("additional_tools", "tool_search_output"):
            body = item.body()
            assert isinstance(body, AdditionalTools | LoadedTools)
            added.append(Toolset.brought(body.tools).callables)
    return merged(job.head.tools.callables, *added)


def _tool_choice(offer: Offer, available: tuple[CallableTool, ...], *, hosted: bool) -> object:
    """The ``tool_choice`` that narrows the available tools to this offer; None if the default does."""
    if offer.forbidden:
        return "none" if available or hosted else None
    if not available:
        return None
    if not offer.tools:
        return "none"
    if len(offer.tools) == len(available) and not (offer.narrowed and hosted):
        return "required" if offer.required else None
    named = list(map(_named, offer.tools))
    if offer.required and len(named) == 1 and offer.tools[0].kind != "tool_search":
        return named[0]
    return {"type": "allowed_tools", "mode": "required" if offer.required else "auto", "tools": named}


def _named(tool: CallableTool) -> dict[str, object]:
    """A tool as ``tool_choice`` refers to it."""
    if tool.kind == "tool_search":
        return {"type": tool.kind}
    return _given({"type": tool.kind, "name": tool.name, "namespace": tool.namespace})
