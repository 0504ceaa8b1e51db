"""Builds the response object: the fields it repeats from its request, its usage and its error."""

from msgspec import UNSET, Raw, UnsetType, structs

from slipring.base.errors import ApiError, ExternalConnectorError, RateLimited, Unavailable
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Accepted, Finished, Settings
from slipring.protocol.requests import TEXT, CacheLifetime, CreateRequest
from slipring.protocol.responses import (
    CacheWriteDetails,
    ConnectorFailure,
    InputTokensDetails,
    Outage,
    OutputTokensDetails,
    RateLimit,
    ReasoningEcho,
    Response,
    ResponseError,
    TextEcho,
    Usage,
)
from slipring.protocol.tools.tool_choice import AUTO, ToolChoice
from slipring.protocol.turn_report import TokenCounts

_ACTED_ON = frozenset({"context_length_exceeded", "insufficient_quota", "model_not_found"})
"""Codes that the API sends although its types do not name them: Codex compacts, or does not try again."""
_NULL, _NO_TOOLS = Raw(b"null"), Raw(b"[]")


def new_response(
    request: CreateRequest,
    head: Head,
    choice: ToolChoice,
    settings: Settings,
    *,
    response_id: str,
    model: str,
    now: float,
) -> Response:
    """The response object in ``in_progress``, with every field that is known before the first output."""
    verbosity = request.text.verbosity if request.text is not None else None
    return Response(
        id=response_id,
        created_at=int(now),
        model=model,
        instructions=head.instructions_json,
        previous_response_id=request.previous_response_id,
        tools=head.tools.echo,
        tool_choice=choice.echo,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=_echo_reasoning(request, settings.effort),
        text=TextEcho(format=settings.format.echo, verbosity=verbosity or "medium"),
        store=request.store is not False,
        metadata=request.metadata or {},
        truncation=request.truncation or "disabled",
        temperature=_or(settings.temperature, 1.0),
        top_p=_or(settings.top_p, 1.0),
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        service_tier="default",
        max_output_tokens=settings.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        prompt_cache_key=request.prompt_cache_key,
        safety_identifier=request.safety_identifier,
        user=request.user,
        status="in_progress",
    )


def as_announced(response: Response, *, is_short: bool) -> Response:
    """The response as its first events show it. ``is_short``: its client wants them without the largest
    parts, which it has sent itself: instructions and tools."""
    return structs.replace(response, instructions=_NULL, tools=_NO_TOOLS) if is_short else response


def without_definitions(response: Response) -> Response:
    """The response without what its client has defined: instructions, tools, and the format of the answer."""
    text = TextEcho(format=TEXT.echo, verbosity=response.text.verbosity)
    return structs.replace(as_announced(response, is_short=True), text=text, tool_choice=AUTO.echo)


def usage(finished: Finished, lifetime: CacheLifetime | None = None) -> Usage:
    """Token usage in the form of the response object. ``lifetime``: what the request asks of caches. Without
    it, the written tokens are one number: the Agents SDK for JavaScript fails on an object there."""
    written = finished.input_tokens - finished.cached_tokens
    by_lifetime: CacheWriteDetails | UnsetType = UNSET
    if lifetime is not None:
        is_long = lifetime == "12h"
        by_lifetime = CacheWriteDetails(
            ttl_30m_tokens=0 if is_long else written, ttl_12h_tokens=written if is_long else 0
        )
    return Usage(
        input_tokens=finished.input_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=finished.cached_tokens,
            cache_write_tokens=written,
            cache_write_tokens_details=by_lifetime,
        ),
        output_tokens=finished.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=finished.reasoning_tokens),
        total_tokens=finished.input_tokens + finished.output_tokens,
    )


def failure(error: ApiError) -> ResponseError:
    """The ``error`` of a failed response. The API documents few codes here; clients retry on all of them
    except ``invalid_prompt``, and act on those of ``_ACTED_ON``."""
    if error.code in _ACTED_ON:
        return ResponseError(code=error.code, message=error.message)
    if error.status == Unavailable.status:
        return Outage(code="server_error", message=error.message).after(error.retry_after_s)
    if error.status == RateLimited.status:
        return RateLimit(code="rate_limit_exceeded", message=error.message).after(error.retry_after_s)
    if isinstance(error, ExternalConnectorError):
        return ConnectorFailure(code="server_error", message=error.message)
    refused = "invalid_prompt" if 400 <= error.status < 500 else "server_error"
    return ResponseError(code=refused, message=error.message)


def counts(accepted: Accepted, finished: Finished) -> TokenCounts:
    """Token counts in the form of turn reports."""
    return TokenCounts(
        rendered=accepted.rendered_tokens,
        input=finished.input_tokens,
        cached=finished.cached_tokens,
        output=finished.output_tokens,
        reasoning=finished.reasoning_tokens,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _echo_reasoning(request: CreateRequest, effort: str | None) -> ReasoningEcho:
    sent = request.reasoning
    if sent is None:
        return ReasoningEcho(effort=effort)
    return ReasoningEcho(
        effort=effort,
        summary=sent.summary or sent.generate_summary,
        context=sent.context if sent.context is not None else UNSET,
        mode=sent.mode if sent.mode is not None else UNSET,
    )
