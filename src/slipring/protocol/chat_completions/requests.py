"""Requests for chat completions: the fields that they may have, and the create request that they become.

What is not supported is refused by name. ``tools`` and ``tool_choice``, also in their older form, become the
protocol's own: the bytes of a tool depend on its definition alone, not on the order of the fields around it.
``ChatTranslation`` serves one request, and answers it with what the events of its choices become.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from slipring.base.errors import ApiError, InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.chat_completions.completion import (
    AnswerForm,
    ChatCompletion,
    CompletionStream,
    choice_of,
    completion_id,
    moderation_of,
    usage_of,
)
from slipring.protocol.chat_completions.errors import CUSTOM, FUNCTION, LEGACY_FUNCTION, Place, Places
from slipring.protocol.chat_completions.history import History
from slipring.protocol.endpoints import translation
from slipring.protocol.endpoints.translation import ErrorReply, Translation
from slipring.protocol.events import Error, ErrorBody, Event, Failed, ResponseEvent
from slipring.protocol.items.items import Effort
from slipring.protocol.requests import (
    NOTHING_KNOWN,
    CreateRequest,
    Known,
    Metadata,
    ModerationConfig,
    PromptCacheOptions,
    ReasoningConfig,
    ResentHistory,
    ServiceTier,
    StopSequence,
    StopSequences,
    StreamOptions,
    TextConfig,
)
from slipring.protocol.responses import Response, Usage
from slipring.protocol.tools.tool_types import MOST_TOOLS

T = TypeVar("T")
MOST_CHOICES = 8
"""The largest ``n``."""
LogitBias = Annotated[
    dict[Annotated[int, Meta(ge=0)], Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)
]
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "json_schema": (),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "web_search_options": (),
}
"""Fields that would change the answer and that no engine is given, with the values that change nothing beside
null: with any other one, the request is refused."""


class ChatSchema(Struct, omit_defaults=True):
    """A ``json_schema`` as a client sends it. Its fields are checked where the protocol's own format is."""

    name: str | UnsetType = UNSET
    schema: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET


class ChatFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: ChatSchema | None = None


class ChatStreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ThinkingSwitch(Struct):
    """``thinking``, by which several servers switch the reasoning of a model on or off."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class ChatRequest(Struct, dict=True):
    """A request for a chat completion."""

    messages: Raw
    model: str | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    functions: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    response_format: Raw | UnsetType = UNSET
    verbosity: Literal["low", "medium", "high"] | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    chat_template_kwargs: Raw | UnsetType = UNSET
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stop: Raw | UnsetType = UNSET
    seed: int | None = None
    logit_bias: Raw | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    metadata: Raw | UnsetType = UNSET
    store: bool | None = None
    moderation: Raw | UnsetType = UNSET
    service_tier: ServiceTier | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def has_legacy_functions(self) -> bool:
        """Whether the request offers ``functions``, so that a call of its answer is a ``function_call``."""
        return wire.given(self.functions) is not None


_request: msgspec.json.Decoder[ChatRequest] = msgspec.json.Decoder(
    msgspec.defstruct("Received", [(name, Raw | UnsetType, UNSET) for name in _NEUTRAL], bases=(ChatRequest,))
)
_value = msgspec.json.Decoder()
_format = msgspec.json.Decoder(ChatFormat)
_stop: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(StopSequence | StopSequences)
_bias: msgspec.json.Decoder[dict[int, float]] = msgspec.json.Decoder(LogitBias)
_metadata: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(Metadata)
_moderation = msgspec.json.Decoder(ModerationConfig)
_template_arguments = msgspec.json.Decoder(dict[str, Any])


def read_request(body: bytes) -> ChatRequest:
    """Decode a request; errors name the field."""
    request = wire.decode(_request, body)
    for name, neutral in _NEUTRAL.items():
        sent = wire.given(getattr(request, name))
        if sent is not None and (len(sent) > 32 or wire.decode(_value, sent, where=name) not in neutral):
            raise UnsupportedParameter(
                f"Unsupported parameter: '{name}' is not supported by this server.", param=name
            )
    return request


def _short(sent: Raw | UnsetType, name: str, decoder: wire.Decoder[T]) -> T | None:
    """Decode a field of bounded length; None if it is absent or null."""
    given = wire.given(sent)
    if given is None:
        return None
    wire.require_short(given, name, wire.LONG_BYTES)
    return wire.decode(decoder, given, where=name)


class ChatFunction(Struct):
    name: str
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None


class ChatGrammar(Struct):
    syntax: str
    definition: str


class ChatCustomFormat(Struct):
    type: Literal["text", "grammar"]
    grammar: ChatGrammar | None = None


class ChatCustomTool(Struct):
    name: str
    description: str | None = None
    format: ChatCustomFormat | None = None


class ChatTool(Struct):
    """A tool as a client sends it."""

    type: str
    function: ChatFunction | None = None
    custom: ChatCustomTool | None = None


class FunctionTool(Struct, tag_field="type", tag="function", omit_defaults=True):
    name: str
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None


class GrammarFormat(Struct, tag_field="type", tag="grammar"):
    syntax: str
    definition: str


class CustomTool(Struct, tag_field="type", tag="custom", omit_defaults=True):
    name: str
    description: str | None = None
    format: GrammarFormat | None = None


class ChatToolName(Struct):
    name: str


class ChatNamedTool(Struct):
    type: str
    function: ChatToolName | None = None
    custom: ChatToolName | None = None


class ChatAllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: list[ChatNamedTool]


class ChatToolChoice(ChatNamedTool):
    allowed_tools: ChatAllowedTools | None = None


ToolChoices = Literal["none", "auto", "required"] | ChatToolChoice
FunctionChoices = Literal["none", "auto"] | ChatToolName


class NamedTool(Struct):
    type: str
    name: str


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    mode: str
    tools: list[NamedTool]


_entries = msgspec.json.Decoder(list[Raw])
_tool = msgspec.json.Decoder(ChatTool)
_function = msgspec.json.Decoder(ChatFunction)
_choice: msgspec.json.Decoder[str | ChatToolChoice] = msgspec.json.Decoder(ToolChoices)
_function_choice: msgspec.json.Decoder[str | ChatToolName] = msgspec.json.Decoder(FunctionChoices)


class ToolOffer:
    """The tools of a request and the choice among them. Raises ``ApiError`` that names the field."""

    def __init__(self, request: ChatRequest) -> None:
        self.places: list[Place] = []
        """Where each tool stands in the request."""
        self._tools: list[FunctionTool | CustomTool] = []
        if request.has_legacy_functions:
            self._read_functions(request.functions)
        self._read_tools(request.tools)
        self.choice = _read_choice(request)

    @property
    def tools(self) -> Raw | UnsetType:
        """The ``tools`` of a create request."""
        return wire.raw(self._tools) if self._tools else UNSET

    def _read_tools(self, tools: Raw | UnsetType) -> None:
        for index, raw in enumerate(_list(tools, "tools")):
            where = f"tools[{index}]"
            tool = wire.decode(_tool, raw, where=where)
            if tool.type == "function":
                if tool.function is None:
                    raise wire.explain("Object missing required field `function`", where)
                self._add(_function_tool(tool.function), Place(where, FUNCTION))
            elif tool.type == "custom":
                if tool.custom is None:
                    raise wire.explain("Object missing required field `custom`", where)
                self._add(_custom_tool(tool.custom, where), Place(where, CUSTOM))
            else:
                raise UnsupportedParameter.at(
                    f"{where}.type",
                    f"{quoted(tool.type)} is not a tool of this endpoint, which has 'function' and"
                    " 'custom'. POST /v1/responses also runs tools on the server",
                )

    def _read_functions(self, functions: Raw | UnsetType) -> None:
        for index, raw in enumerate(_list(functions, "functions")):
            where = f"functions[{index}]"
            function = wire.decode(_function, raw, where=where)
            self._add(_function_tool(function), Place(where, LEGACY_FUNCTION))

    def _add(self, tool: FunctionTool | CustomTool, place: Place) -> None:
        self._tools.append(tool)
        self.places.append(place)


def _list(sent: Raw | UnsetType, name: str) -> list[Raw]:
    given = wire.given(sent)
    if given is None:
        return []
    wire.require_few(given, MOST_TOOLS, name, "tools")
    return wire.decode(_entries, given, where=name)


def _function_tool(function: ChatFunction) -> FunctionTool:
    parameters = wire.given(function.parameters)
    return FunctionTool(
        function.name,
        function.description,
        UNSET if parameters is None else parameters,
        function.strict or None,
    )


def _custom_tool(custom: ChatCustomTool, where: str) -> CustomTool:
    form = custom.format
    grammar: GrammarFormat | None = None
    if form is not None and form.type == "grammar":
        if form.grammar is None:
            raise wire.explain("Object missing required field `grammar`", f"{where}.custom.format")
        grammar = GrammarFormat(form.grammar.syntax, form.grammar.definition)
    return CustomTool(custom.name, custom.description, grammar)


def _read_choice(request: ChatRequest) -> Raw | UnsetType:
    """The ``tool_choice`` of a create request."""
    choice = _short(request.tool_choice, "tool_choice", _choice)
    if choice is None:
        return _read_function_choice(request.function_call)
    if isinstance(choice, str):
        return wire.raw(choice)
    if choice.type != "allowed_tools":
        return wire.raw(_named(choice, "tool_choice"))
    if choice.allowed_tools is None:
        raise wire.explain("Object missing required field `allowed_tools`", "tool_choice")
    named = [
        _named(tool, f"tool_choice.allowed_tools.tools[{index}]")
        for index, tool in enumerate(choice.allowed_tools.tools)
    ]
    return wire.raw(AllowedTools(choice.allowed_tools.mode, named))


def _read_function_choice(sent: Raw | UnsetType) -> Raw | UnsetType:
    choice = _short(sent, "function_call", _function_choice)
    if choice is None:
        return UNSET
    return wire.raw(choice if isinstance(choice, str) else NamedTool("function", choice.name))


def _named(tool: ChatNamedTool, where: str) -> NamedTool:
    if tool.type not in ("function", "custom"):
        raise UnsupportedParameter.at(f"{where}.type", f"{quoted(tool.type)} is not a tool of this endpoint")
    named = tool.function if tool.type == "function" else tool.custom
    if named is None:
        raise wire.explain(f"Object missing required field `{tool.type}`", where)
    return NamedTool(tool.type, named.name)


_LOGPROBS = "message.output_text.logprobs"
_NO_PLACES = Places(lambda item: None, (), {}, lambda number: None)


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
        self._places = Places(history.place, offer.places, _names(sent), history.sent_id)
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
        token_bias=_short(sent.logit_bias, "logit_bias", _bias) or None,
        metadata=_short(sent.metadata, "metadata", _metadata),
        prompt_cache_key=sent.prompt_cache_key,
        safety_identifier=sent.safety_identifier,
        moderation=_short(sent.moderation, "moderation", _moderation),
        stream_options=StreamOptions(True) if padded else None,
        stream=sent.stream,
    )


def _effort_of(sent: ChatRequest) -> Effort | None:
    """How much the model is to reason: ``none`` if any field switches reasoning off."""
    is_off = sent.enable_thinking is False or (sent.thinking is not None and sent.thinking.type == "disabled")
    return "none" if is_off or _template_switch(sent) is False else sent.reasoning_effort


def _template_switch(sent: ChatRequest) -> bool | None:
    given = _short(sent.chat_template_kwargs, "chat_template_kwargs", _template_arguments) or {}
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
    given = _short(sent.stop, "stop", _stop)
    return [given] if isinstance(given, str) else given or []


def _top_logprobs(sent: ChatRequest) -> int | None:
    if sent.top_logprobs and not sent.logprobs:
        raise InvalidRequest("'top_logprobs' requires 'logprobs' to be true.", param="top_logprobs")
    return sent.top_logprobs


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """The protocol's own format. UNSET fields are left out, so that its decoder names what is missing."""

    name: str | UnsetType
    schema: Raw | UnsetType
    strict: bool | UnsetType
    description: str | UnsetType


def _read_format(sent: Raw | UnsetType) -> Raw | UnsetType:
    """The ``text.format`` of a create request."""
    given = wire.given(sent)
    if given is None:
        return UNSET
    format = wire.decode(_format, given, where="response_format")
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
