"""One request of the Chat Completions API: read as a create request, answered with what its events become."""

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from slipring.base.errors import ApiError, InvalidRequest, UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.chat_completions.completion import (
    AnswerForm,
    ChatCompletion,
    choice_of,
    completion_id,
    moderation_of,
    usage_of,
)
from slipring.protocol.chat_completions.error_paths import Places
from slipring.protocol.chat_completions.history import History
from slipring.protocol.chat_completions.requests import (
    BIAS,
    FORMAT,
    METADATA,
    MODERATION,
    STOP,
    TEMPLATE_ARGUMENTS,
    ChatRequest,
    read_request,
    short,
)
from slipring.protocol.chat_completions.stream import CompletionStream
from slipring.protocol.chat_completions.tools import ToolOffer
from slipring.protocol.endpoints import translation
from slipring.protocol.endpoints.translated_messages import NOTHING_KNOWN, Known
from slipring.protocol.endpoints.translation import ErrorReply, Translation
from slipring.protocol.events import Error, ErrorBody, Event, Failed, ResponseEvent
from slipring.protocol.items import Effort
from slipring.protocol.requests import (
    CreateRequest,
    ReasoningConfig,
    ResentHistory,
    StreamOptions,
    TextConfig,
)
from slipring.protocol.responses import Response, Usage

_LOGPROBS = "message.output_text.logprobs"
_NO_PLACES = Places((), (), {}, lambda number: None)


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """The protocol's own format. UNSET fields are left out, so that its decoder names what is missing."""

    name: str | UnsetType
    schema: Raw | UnsetType
    strict: bool | UnsetType
    description: str | UnsetType


class ChatTranslation(Translation):
    """Translates one request and its answer. ``read`` comes first."""

    api = "chat_completions"

    def __init__(self, fingerprint: str) -> None:
        """``fingerprint``: names the version of the server, as ``system_fingerprint``."""
        self.form = AnswerForm(fingerprint=fingerprint)
        """What the client asks of the form of its answer."""
        self.streams = False
        self._places = _NO_PLACES
        self._stream = CompletionStream(self.form, self._places)
        self._ended: dict[int, Response] = {}
        """The responses that have ended, by the index of their choice."""

    def read(self, body: bytes, known: Known = NOTHING_KNOWN) -> CreateRequest:
        """The create request that each choice answers. Raises ``ApiError`` in the client's terms."""
        sent = read_request(body)
        history, offer = History(sent.messages, known), ToolOffer(sent)
        create = _create(sent, history, offer)
        create.consist_of(history.pieces)
        self._places = Places(history.places, offer.places, _names(sent), history.sent_id)
        self.streams, options = sent.stream is True, sent.stream_options
        self.form = AnswerForm(
            choices=sent.choices,
            usage=options is not None and options.include_usage is True,
            logprobs=sent.logprobs is True,
            legacy=sent.has_legacy_functions,
            fingerprint=self.form.fingerprint,
        )
        self._stream = CompletionStream(self.form, self._places)
        return create

    def prefilled(self, prompt: Usage | None) -> None:
        """The prompt was processed for all choices at once, by a job with this usage. An engine that has not
        done so reports no tokens."""
        self._stream.prompt = prompt if prompt is not None and prompt.input_tokens else None

    def forks(self, request: CreateRequest, first_id: str) -> list[CreateRequest]:
        """The create requests of all choices, which continue a response with the prompt. The id of a lane is
        the index of its choice."""
        return [
            structs.replace(
                request,
                generate=None,
                previous_response_id=first_id,
                stream_id=str(index),
                seed=None if request.seed is None else request.seed + index,
            )
            for index in range(self.form.choices)
        ]

    def judged(self, event: Event, first: Response) -> Event:
        """An event of a choice: a choice that fails ends the completion."""
        return event

    def frames(self, event: Event) -> bytes:
        """The SSE blocks for an event; empty if it has none."""
        return self._stream.frames(event)

    def ends(self, event: ResponseEvent) -> bool:
        lane = event.stream_id
        self._ended[0 if lane is UNSET else int(lane)] = event.response
        return isinstance(event, Failed) or len(self._ended) == self.form.choices

    def end(self) -> bytes:
        return b"" if self._stream.has_failed else translation.DONE

    def body(self, response: Response) -> ChatCompletion:
        responses = [self._ended[index] for index in sorted(self._ended)]
        first = responses[0]
        used = [response.usage for response in responses if response.usage is not None]
        completion = ChatCompletion(
            completion_id(first),
            first.created_at,
            first.model,
            [choice_of(response, index, self.form) for index, response in enumerate(responses)],
            usage_of(used, self._stream.prompt) if used else None,
            first.service_tier,
            self.form.fingerprint,
        )
        if first.metadata:
            completion.metadata = first.metadata
        if first.moderation is not UNSET:
            completion.moderation = moderation_of(first.moderation)
        return completion

    def error(self, error: Error) -> ErrorReply:
        return super().error(structs.replace(error, error=self._places.renamed(error.error)))

    def rename(self, error: ApiError) -> None:
        """Let an error of the core name the fields of the client's own request."""
        renamed = self._places.renamed(ErrorBody.of(error))
        error.message, error.param = renamed.message, renamed.param


def _names(sent: ChatRequest) -> dict[str, str]:
    """The core's names of fields, and the client's."""
    named = "function_call" if sent.has_legacy_functions else "tool_choice"
    return {
        "text.format": "response_format",
        "reasoning.effort": "reasoning_effort",
        "max_output_tokens": "max_tokens" if sent.max_completion_tokens is None else "max_completion_tokens",
        "include": "logprobs",
        "tool_choice": named,
        "tools": "functions" if sent.has_legacy_functions else "tools",
    }


def _create(sent: ChatRequest, history: History, offer: ToolOffer) -> ResentHistory:
    options, effort = sent.stream_options, _effort_of(sent)
    limit = sent.max_tokens if sent.max_completion_tokens is None else sent.max_completion_tokens
    padded = options is not None and options.include_obfuscation is True
    return ResentHistory(
        first_call=history.call_count,
        model=sent.model,
        input=history.items,
        tools=offer.tools,
        tool_choice=offer.choice,
        # An answer has one ``function_call`` at most.
        parallel_tool_calls=False if sent.has_legacy_functions else sent.parallel_tool_calls,
        reasoning=None if effort is None else ReasoningConfig(effort),
        text=TextConfig(_read_format(sent.response_format)),
        include=[_LOGPROBS] if sent.logprobs else None,
        store=False,
        max_output_tokens=limit,
        temperature=sent.temperature,
        top_p=sent.top_p,
        top_logprobs=_top_logprobs(sent),
        presence_penalty=sent.presence_penalty,
        frequency_penalty=sent.frequency_penalty,
        seed=sent.seed,
        top_k=sent.top_k if sent.top_k is not None and sent.top_k > 0 else None,
        stop=_stop_sequences(sent) or None,
        token_bias=short(sent.logit_bias, "logit_bias", BIAS) or None,
        metadata=short(sent.metadata, "metadata", METADATA),
        prompt_cache_key=sent.prompt_cache_key,
        safety_identifier=sent.safety_identifier,
        moderation=short(sent.moderation, "moderation", MODERATION),
        stream_options=StreamOptions(True) if padded else None,
        stream=sent.stream,
    )


def _effort_of(sent: ChatRequest) -> Effort | None:
    """How much the model is to reason: ``none`` if any field switches reasoning off."""
    is_off = sent.enable_thinking is False or (sent.thinking is not None and sent.thinking.type == "disabled")
    return "none" if is_off or _template_switch(sent) is False else sent.reasoning_effort


def _template_switch(sent: ChatRequest) -> bool | None:
    given = short(sent.chat_template_kwargs, "chat_template_kwargs", TEMPLATE_ARGUMENTS) or {}
    switch: bool | None = None
    for name, value in given.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if name not in ("enable_thinking", "thinking"):
            raise UnsupportedParameter.at(
                param, "only 'enable_thinking' and 'thinking' reach the template of a model"
            )
        if not isinstance(value, bool):
            raise InvalidRequest.at(param, "expected a boolean", code="invalid_type")
        switch = value if switch is None else switch and value
    return switch


def _stop_sequences(sent: ChatRequest) -> list[str]:
    given = short(sent.stop, "stop", STOP)
    return [given] if isinstance(given, str) else given or []


def _top_logprobs(sent: ChatRequest) -> int | None:
    if sent.top_logprobs and not sent.logprobs:
        raise InvalidRequest("'top_logprobs' requires 'logprobs' to be true.", param="top_logprobs")
    return sent.top_logprobs


def _read_format(sent: Raw | UnsetType) -> Raw | UnsetType:
    """The ``text.format`` of a create request."""
    given = wire.given(sent)
    if given is None:
        return UNSET
    format = wire.decode(FORMAT, given, where="response_format")
    if format.type != "json_schema":
        return wire.raw({"type": format.type})
    schema = format.json_schema
    if schema is None:
        raise wire.explain("Object missing required field `json_schema`", "response_format")
    return wire.raw(
        JsonSchemaFormat(
            schema.name,
            schema.schema,
            UNSET if schema.strict is None else schema.strict,
            UNSET if schema.description is None else schema.description,
        )
    )
