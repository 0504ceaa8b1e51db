"""Requests of the Messages API: their fields, what each of them asks for, and the create request they become.

Unknown fields pass; errors name the field. ``MessagesTranslation`` serves one request, and writes the answer
to it.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.endpoints.rate_limits import RateLimit, anthropic_headers
from slipring.protocol.endpoints.translation import ErrorReply, Translation
from slipring.protocol.events import Error, Event
from slipring.protocol.items.items import Effort
from slipring.protocol.messages import answer, content, errors
from slipring.protocol.messages.answer import PING, AnswerStream, Wishes
from slipring.protocol.messages.errors import UNTHREADED, Fields
from slipring.protocol.messages.history import History, Opens, Places
from slipring.protocol.messages.tools import Choice, LoadedTools, NoChoice, Tools
from slipring.protocol.requests import (
    NOTHING_KNOWN,
    CreateRequest,
    Known,
    ReasoningConfig,
    ResentHistory,
    StopSequences,
    TextConfig,
)
from slipring.protocol.responses import Response

_OptionalRaw = Raw | UnsetType
_LONGEST_ID = 128
_BILLING = "x-anthropic-billing-header:"
"""How the first block of ``system`` begins if Claude Code has written it. It is no instruction, and changes
with every request in some versions."""
_INCLUDED = {
    "web_search": "web_search_call.action.sources",
    "code_interpreter": "code_interpreter_call.outputs",
}


class ThinkingEnabled(Struct, tag_field="type", tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Literal["summarized", "omitted", "updates"] | None = None


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive"):
    display: Literal["summarized", "omitted", "updates"] | None = None


class ThinkingBetweenTools(Struct, tag_field="type", tag="between_tools"): ...


class ThinkingDisabled(Struct, tag_field="type", tag="disabled"): ...


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled


class JsonFormat(Struct):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: _OptionalRaw = msgspec.UNSET


class UserMetadata(Struct):
    user_id: Annotated[str, Meta(max_length=4096)] | None = None


class CountRequest(Struct, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``."""

    model: str
    messages: Raw
    system: _OptionalRaw = msgspec.UNSET
    tools: _OptionalRaw = msgspec.UNSET
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    mcp_servers: _OptionalRaw = msgspec.UNSET
    context_management: _OptionalRaw = msgspec.UNSET
    container: _OptionalRaw = msgspec.UNSET
    fallbacks: _OptionalRaw = msgspec.UNSET
    thread: _OptionalRaw = msgspec.UNSET
    compaction: _OptionalRaw = msgspec.UNSET
    stop_sequences: _OptionalRaw = msgspec.UNSET
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    metadata: UserMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: Annotated[int, Meta(ge=0)]


class Edit(Struct):
    type: str
    keep: _OptionalRaw = msgspec.UNSET


class Edits(Struct):
    edits: list[Edit] = []


class _Turns(Struct):
    type: str


_create = msgspec.json.Decoder(MessagesRequest)
_count = msgspec.json.Decoder(CountRequest)
_edits = msgspec.json.Decoder(Edits)
_keep = msgspec.json.Decoder(str | _Turns)
_sequences = msgspec.json.Decoder(StopSequences)
_REFUSED = ("container", "fallbacks", "compaction")


def read_create(body: bytes) -> CountRequest:
    """Decode a request for an answer."""
    return _checked(wire.decode(_create, body))


def read_count(body: bytes) -> CountRequest:
    """Decode a request for the number of tokens."""
    return _checked(wire.decode(_count, body))


def _checked(request: CountRequest) -> CountRequest:
    for name in _REFUSED:
        if wire.given(getattr(request, name)) is not None:
            raise UnsupportedParameter.at(name, "not supported by this server")
    if wire.given(request.thread) is not None:
        raise UnsupportedParameter.at(
            "thread",
            "not supported by this server. Send the whole conversation: what was sent before is recognised",
            code=UNTHREADED,
        )
    if request.output_config is not None and wire.given(request.output_config.task_budget) is not None:
        raise UnsupportedParameter.at("output_config.task_budget", "not supported by this server")
    _check_edits(request.context_management)
    return request


def read_edits(data: Raw | UnsetType) -> list[Edit]:
    sent = wire.given(data)
    if sent is None:
        return []
    wire.require_short(sent, "context_management")
    return wire.decode(_edits, sent, where="context_management").edits


def _check_edits(data: Raw | UnsetType) -> None:
    """Refuse edits of the context other than the one that keeps all thoughts: nothing here makes them."""
    for index, edit in enumerate(read_edits(data)):
        where = f"context_management.edits[{index}]"
        if edit.type != "clear_thinking_20251015":
            raise UnsupportedParameter.at(
                f"{where}.type", f"{quoted(edit.type)} is not supported by this server"
            )
        kept = wire.given(edit.keep)
        found = None if kept is None else wire.decode(_keep, kept, where=f"{where}.keep")
        if (found if isinstance(found, str) or found is None else found.type) != "all":
            raise UnsupportedParameter.at(f"{where}.keep", "only 'all' is supported: no thinking is cleared")


class Counted(Struct):
    """The body that counting tokens is answered with."""

    input_tokens: int


class MessagesTranslation(Translation):
    """Translates one request and its answer."""

    api = "messages"
    keepalive = PING

    def __init__(
        self,
        request_id: str,
        opens: Opens = lambda signature: False,
        read: Callable[[bytes], CountRequest] = read_create,
    ) -> None:
        """``opens``: whether a signature is a thought that this server has sealed for the client's tenant.
        ``read``: decodes the body."""
        self._request_id = request_id
        self._opens = opens
        self._read = read
        self._fields = Fields()
        self._wishes = Wishes(max_tokens=0)
        self._stream = AnswerStream(self._wishes, self._fields, request_id)

    def read(self, body: bytes, known: Known = NOTHING_KNOWN) -> CreateRequest:
        try:
            return self._create(self._read(body), known)
        except InvalidRequest as error:
            raise errors.in_style(error) from None

    def frames(self, event: Event) -> bytes:
        return self._stream.frames(event)

    def end(self) -> bytes:
        return b""

    def body(self, response: Response) -> object:
        return answer.answer_of(response, self._wishes)

    def counted(self, tokens: int) -> object:
        return Counted(tokens)

    def error(self, error: Error) -> ErrorReply:
        return errors.reply_of(error, self._fields, self._request_id)

    def limit_headers(self, limits: Sequence[RateLimit]) -> dict[str, str]:
        return anthropic_headers(limits)

    def _create(self, request: CountRequest, known: Known) -> CreateRequest:
        tools = Tools()
        tools.read(request.tools, request.mcp_servers)
        loaded = LoadedTools(tools)
        history = History(self._opens, loaded, known)
        history.read(request.messages)
        shows = shows_thinking(request)
        create = ResentHistory(
            first_call=history.call_count,
            model=request.model,
            instructions=instructions_of(request.system),
            tools=tools.raw,
            tool_choice=tools.choice(request.tool_choice, loaded.offered, loaded.withdrawn),
            parallel_tool_calls=_parallel(request),
            reasoning=ReasoningConfig(
                effort=effort_of(request), context="all_turns" if keeps_thoughts(request) else None
            ),
            text=self._text(request),
            include=["reasoning.encrypted_content"] if shows else [],
            store=False,
            max_output_tokens=request.max_tokens or None,
            generate=False if request.max_tokens == 0 else None,
            temperature=request.temperature,
            top_p=request.top_p,
            stop=stop_sequences_of(request.stop_sequences) or None,
            top_k=request.top_k or None,
            stream=request.stream,
        )
        create.consist_of(history.pieces)
        assert create.include is not None
        create.include += [field for kind, field in _INCLUDED.items() if kind in tools.hosted]
        _identify(create, request)
        self._fields.place, self._fields.tools = Places(history.pieces).find, tools.places
        self._wishes = Wishes(
            max_tokens=request.max_tokens or 0,
            shows_thinking=shows,
            omits_thoughts=omits_thoughts(request),
            edits_context=wire.given(request.context_management) is not None,
        )
        self._stream = AnswerStream(self._wishes, self._fields, self._request_id)
        return create

    def _text(self, request: CountRequest) -> TextConfig | None:
        found = format_of(request)
        if found is None:
            return None
        self._fields.format, asked = found
        sent = {"type": "json_schema", "name": "answer", "schema": asked.schema, "strict": True}
        return TextConfig(format=wire.raw(sent))


def _parallel(request: CountRequest) -> bool | None:
    choice = request.tool_choice
    if choice is None or isinstance(choice, NoChoice):
        return None
    return False if choice.disable_parallel_tool_use is True else None


def _identify(create: CreateRequest, request: CountRequest) -> None:
    """Pass on the user whom the client names."""
    user = request.metadata.user_id if request.metadata is not None else None
    if user is not None and len(user) <= _LONGEST_ID:
        create.safety_identifier = user
    else:
        create.user = user


def keeps_thoughts(request: CountRequest) -> bool:
    """Whether the client asks that the model reads the thoughts of all turns, not only of the last one."""
    return bool(read_edits(request.context_management))


def instructions_of(system: Raw | UnsetType) -> str | None:
    """``system`` as one text, without the line in its first block that Claude Code writes for billing."""
    sent = wire.given(system)
    if sent is None:
        return None
    texts = content.read_texts(sent, "system")
    if bytes(sent).startswith(b"[") and texts and texts[0].startswith(_BILLING):
        texts[0] = texts[0].partition("\n")[2]
    return "\n\n".join(filter(None, texts)) or None


def stop_sequences_of(data: Raw | UnsetType) -> list[str]:
    sent = wire.given(data)
    if sent is None:
        return []
    wire.require_short(sent, "stop_sequences")
    return wire.decode(_sequences, sent, where="stop_sequences")


def shows_thinking(request: CountRequest) -> bool:
    """Whether the answer has thinking blocks."""
    return request.thinking is not None and not isinstance(request.thinking, ThinkingDisabled)


def omits_thoughts(request: CountRequest) -> bool:
    """Whether the thinking blocks of the answer have no text, only their signatures."""
    thinking = request.thinking
    return isinstance(thinking, ThinkingEnabled | ThinkingAdaptive) and thinking.display == "omitted"


def format_of(request: CountRequest) -> tuple[str, JsonFormat] | None:
    """The field with the format of the answer, and the format."""
    if request.output_config is not None and request.output_config.format is not None:
        return "output_config.format", request.output_config.format
    return ("output_format", request.output_format) if request.output_format is not None else None


def effort_of(request: CountRequest) -> Effort | None:
    """How much the model thinks; None: as much as it does by default."""
    thinking, asked = request.thinking, request.output_config
    if thinking is None or isinstance(thinking, ThinkingDisabled):
        return "none"
    if asked is not None and asked.effort is not None:
        return asked.effort
    if not isinstance(thinking, ThinkingEnabled):
        return None
    if thinking.budget_tokens <= 4096:
        return "low"
    return "medium" if thinking.budget_tokens <= 16384 else "high"
