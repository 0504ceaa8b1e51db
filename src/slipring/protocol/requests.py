"""Create requests: decodes the body of ``response.create`` and ``POST /v1/responses``.

``input``, ``tools`` and ``tool_choice`` stay raw JSON: ``input`` is decoded when its turn begins, the others
only if they differ from the parent's. Unknown fields pass. Known fields are typed, so that an error names the
field. ``core.turn.request_validation`` decides which valid values this server supports.

Clients of other APIs send their whole history again with every turn (``ResentHistory``). Its pieces are the
messages: each is known by its exact bytes, so that one that is sent again is neither decoded nor translated a
second time.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import InvalidJson, InvalidStreamId, UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.items.item_digests import item_outline
from slipring.protocol.items.item_pictures import examine
from slipring.protocol.items.items import MOST_ITEMS, Effort, Item, read_input, read_items
from slipring.protocol.tools.grammars_and_schemas import Definitions

T = TypeVar("T")
Summary = Literal["auto", "concise", "detailed"]
CacheLifetime = Literal["30m", "12h"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
_MetadataKey = Annotated[str, Meta(max_length=64)]
_MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[_MetadataKey, _MetadataValue], Meta(max_length=16)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=256)]
StopSequences = Annotated[list[StopSequence], Meta(max_length=16)]
_PIECES = "messages"
_PIECE_BYTES = 600
"""A piece without its bytes and its items."""
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class ReasoningConfig(Struct):
    effort: Effort | None = None
    summary: Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None
    generate_summary: Summary | None = None


def effective_context(asked: object) -> Literal["current_turn", "all_turns"] | None:
    """What a ``reasoning.context`` asks for; None if the model decides."""
    if asked == "current_turn":
        return "current_turn"
    return "all_turns" if asked == "all_turns" else None


class TextConfig(Struct):
    format: Raw | UnsetType = UNSET
    verbosity: Literal["low", "medium", "high"] | None = None


class PromptCacheOptions(Struct):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: CacheLifetime | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class StreamOptions(Struct):
    include_obfuscation: bool | None = None


class ImageOptions(Struct):
    context_compression: Literal["auto", "enabled", "disabled"] | None = None


class AccessPrograms(Struct):
    cyber: Literal["standard", "daybreak_blue", "daybreak_red"] | None = None


class MultiAgent(Struct):
    enabled: bool | None = None


class ModerationMode(Struct):
    mode: Literal["score", "block"]


class ModerationPolicy(Struct):
    input: ModerationMode | None = None
    output: ModerationMode | None = None


class ModerationConfig(Struct):
    """The safety checks that a request asks for."""

    model: str
    policy: ModerationPolicy | None = None


class Piece(Struct, eq=False):
    """One message, and the items that it has become."""

    sent: bytes
    """The message as the client has sent it, after the name of its API. Items are known by their own bytes,
    which begin otherwise."""
    json: tuple[bytes, ...]
    """The items as JSON."""
    note: Any
    """What the translator of its API has to know of the message beside its items."""
    items: tuple[Item, ...] | None = None
    """None until they are read."""

    @property
    def size_bytes(self) -> int:
        """Memory in use. The JSON is that of the items."""
        return len(self.sent) + sum(item.size_bytes for item in self.items or ()) + _PIECE_BYTES


Known = Mapping[bytes, Item | Piece]
"""What a tenant has sent before, by its bytes."""
NOTHING_KNOWN: Known = {}


def read_pieces(pieces: Iterable[Piece]) -> tuple[Item, ...]:
    """The items of all pieces; those that were read before are not read again. Raises ``ApiError`` that names
    an item by its place among all."""
    found: list[Item] = []
    for piece in pieces:
        items = piece.items
        if items is None:
            items = piece.items = read_items(piece.json, first=len(found))
        found += items
    if len(found) > MOST_ITEMS:
        raise wire.too_many(MOST_ITEMS, "input", "items")
    return tuple(found)


class Origins:
    """Which messages the items of a request come from. An error may name many items, and is written on the
    event loop: nothing is worked out before one is named, and nothing of each item then."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    @cached_property
    def _ends(self) -> list[int]:
        """How many items there are up to each message and with it."""
        return list(accumulate(len(piece.json) for piece in self._pieces))

    def find(self, item: int) -> tuple[int, Piece, int] | None:
        """The message of the item with this index: its own index, itself, and which of its items that is.
        None if there are fewer items."""
        index = bisect_right(self._ends, item)
        if index == len(self._ends):
            return None
        return index, self._pieces[index], item - (self._ends[index - 1] if index else 0)


class CreateRequest(Struct, dict=True):
    """``response.create``, and the body of ``POST /v1/responses``."""

    type: Any = None
    stream_id: Any = None
    generate: bool | None = None
    model: str | None = None
    input: Raw | UnsetType = UNSET
    previous_response_id: str | None = None
    conversation: Raw | UnsetType = UNSET
    instructions: str | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    store: bool | None = None
    context_management: list[Raw] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: int | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None
    stop: StopSequences | None = None
    metadata: Metadata | None = None
    prompt: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
    service_tier: ServiceTier | None = None
    moderation: ModerationConfig | None = None
    image: ImageOptions | None = None
    access_programs: AccessPrograms | None = None
    stream_options: StreamOptions | None = None
    stream: bool | None = None
    background: bool | None = None
    multi_agent: MultiAgent | None = None
    rollout: bool | None = None
    client_metadata: dict[str, Any] | None = None
    restores_thoughts: ClassVar[bool] = False
    """Whether the model reads its thoughts again where the client has left them out of its history."""
    announces_prompt: ClassVar[bool] = False
    """Whether the response says how many tokens its context has when it is created, if that is known."""

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The items of ``input``, decoded on first access."""
        return read_input(self.input)

    @property
    def pieces(self) -> Known:
        """What later requests may send again, by its bytes."""
        return {item.sent: item for item in self.items}

    def read_items(self, known: Known) -> tuple[Item, ...]:
        """The items of ``input``. ``known``: what was decoded before."""
        if "items" not in self.__dict__ and known:
            self.__dict__["items"] = read_input(self.input, known)
        return self.items

    @property
    def read(self) -> tuple[Item, ...]:
        """The items that have been decoded so far: all or none."""
        items: tuple[Item, ...] = self.__dict__.get("items", ())
        return items

    def read_ahead(self, *, digests: bool, known: Known) -> None:
        """Decode the items now with their pictures, and compute their digests if these are wanted. What is
        worked out is kept with an item that is sent again. ``known``: as for ``read_items``. Raises
        ``ApiError``."""
        for item in self.read_items(known):
            examine(item)
            if digests:
                item_outline(item)

    @property
    def compared_id(self) -> str | None:
        """The id of the response that the context is to be compared with."""
        options = self.prompt_cache_options
        return options.comparison_response_id if options is not None else None

    @property
    def cache_lifetime(self) -> CacheLifetime | None:
        """How long the request asks engines to keep what they process, if it does. They promise nothing."""
        options = self.prompt_cache_options
        return options.ttl if options is not None else None

    # What no client of the API itself can ask for. Requests of other APIs have fields of these names.

    @property
    def first_call(self) -> int | None:
        """The number of the first call of the answer, if its calls are numbered: their ids then follow from
        the context. None if their ids are random."""

    @property
    def token_bias(self) -> Mapping[int, float] | None:
        """What is added to the logits of some tokens, by their ids."""

    @property
    def answer_pattern(self) -> str | None:
        """A regular expression that the text of the answer has to match as a whole."""

    @property
    def is_padded(self) -> bool:
        """Whether the client asks for delta events of a fixed size."""
        return self.stream_options is not None and self.stream_options.include_obfuscation is True

    @property
    def warms_up(self) -> bool:
        """Whether the engine only prepares the context: ``generate: false``, or the ``prewarm`` option."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and options.prewarm is True)


class ResentHistory(CreateRequest):
    """A request of an API whose clients send their whole history, and may leave out its thoughts and rename
    its calls."""

    restores_thoughts: ClassVar[bool] = True
    announces_prompt: ClassVar[bool] = True
    first_call: int | None = None
    token_bias: dict[int, float] | None = None

    def consist_of(self, pieces: Sequence[Piece]) -> None:
        """Set the messages whose items are its input. A copy of the request has none."""
        self.__dict__[_PIECES] = tuple(pieces)

    @cached_property
    def items(self) -> tuple[Item, ...]:
        messages = self.__dict__.get(_PIECES)
        return read_input(self.input) if messages is None else read_pieces(messages)

    def read_items(self, known: Known) -> tuple[Item, ...]:
        return self.items if _PIECES in self.__dict__ else super().read_items(known)

    @property
    def pieces(self) -> Known:
        messages = self.__dict__.get(_PIECES)
        return super().pieces if messages is None else {piece.sent: piece for piece in messages}


class PatternedRequest(CreateRequest):
    """A request of an API whose answers have a form of their own."""

    answer_pattern: str | None = None


class ReplyRouting(Struct):
    """The fields that route the reply to a frame whose body is invalid."""

    type: Any = None
    stream_id: Any = None
    previous_response_id: Any = None


class _Received(CreateRequest):
    """First decoding step of a create. Fields that are small in any sensible request stay raw, and are
    decoded only if they are: decoding a huge one would block the event loop."""

    type: Raw | UnsetType = UNSET
    stream_id: Raw | UnsetType = UNSET
    stop: Raw | UnsetType = UNSET  # type: ignore[assignment]
    include: Raw | UnsetType = UNSET  # type: ignore[assignment]
    context_management: Raw | UnsetType = UNSET  # type: ignore[assignment]
    metadata: Raw | UnsetType = UNSET  # type: ignore[assignment]
    client_metadata: Raw | UnsetType = UNSET  # type: ignore[assignment]
    prompt: Raw | UnsetType = UNSET
    moderation: Raw | UnsetType = UNSET  # type: ignore[assignment]


class _Routing(Struct):
    type: Raw | UnsetType = UNSET
    stream_id: Raw | UnsetType = UNSET
    previous_response_id: Raw | UnsetType = UNSET


_received = msgspec.json.Decoder(_Received)
_routing = msgspec.json.Decoder(_Routing)
_any = msgspec.json.Decoder()
_HINTS = get_type_hints(CreateRequest, include_extras=True)
_FIELDS = {name: msgspec.json.Decoder(_HINTS[name]) for name in _Received.__annotations__}
"""Second decoding step: one decoder per field that ``_Received`` keeps raw."""


def read_create(body: bytes | str) -> CreateRequest:
    """Decode a create request; errors name the field."""
    request: CreateRequest = wire.decode(_received, body)
    for name, decoder in _FIELDS.items():
        setattr(request, name, _short(getattr(request, name), name, decoder))
    return request


def _short(sent: Raw | UnsetType, name: str, decoder: wire.Decoder[T]) -> T | None:
    """Decode a field of bounded length."""
    if isinstance(sent, UnsetType):
        return None
    wire.require_short(sent, name)
    return wire.decode(decoder, sent, where=name)


def read_reply_routing(frame: bytes | str) -> ReplyRouting:
    """Decode the routing fields of a frame. Raises if the frame is no JSON object or such a field is too
    long."""
    found = wire.decode(_routing, frame)
    return ReplyRouting(
        _short(found.type, "type", _any),
        _short(found.stream_id, "stream_id", _any),
        _short(found.previous_response_id, "previous_response_id", _any),
    )


def read_lane(stream_id: object) -> str | None:
    """Validate ``stream_id``: the id of a lane, or None for the default lane."""
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not _STREAM_ID.fullmatch(stream_id):
        raise InvalidStreamId
    return stream_id


class ConversationRef(Struct):
    id: Annotated[str, Meta(min_length=1)]


_conversation = msgspec.json.Decoder(str | ConversationRef)


def read_conversation(data: Raw | UnsetType) -> str | None:
    """The conversation id of a request, given as a string or as an object; None if it names none."""
    sent = wire.given(data)
    if sent is None:
        return None
    named = wire.decode(_conversation, sent, where="conversation")
    return named if isinstance(named, str) else named.id


class Management(Struct):
    """An entry of ``context_management``: compact the context at ``compact_threshold`` tokens."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None


_management = msgspec.json.Decoder(Management)


def read_management(entries: list[Raw] | None) -> list[Management]:
    """Decode ``context_management``; errors name the entry."""
    return [
        wire.decode(_management, entry, where=f"context_management[{index}]")
        for index, entry in enumerate(entries or ())
    ]


def require_streaming(request: CreateRequest) -> None:
    """Refuse ``stream: false``, which a WebSocket cannot honour."""
    if request.stream is False:
        raise UnsupportedParameter(
            "Unsupported value: 'stream' cannot be false on a WebSocket.", param="stream"
        )


def require_body(body: bytes) -> bytes:
    """Refuse an HTTP body that is empty or not UTF-8."""
    if not body.strip():
        raise InvalidJson("The request has no body; send a JSON object.")
    return wire.require_text(body)


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: Raw
    strict: bool | UnsetType | None = UNSET
    description: str | UnsetType = UNSET


class _PlainFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]


class _Strictness(Struct):
    strict: bool | None = None


_strictness = msgspec.json.Decoder(_Strictness)
_plain_format = msgspec.json.Decoder(_PlainFormat)
_schema_format = msgspec.json.Decoder(JsonSchemaFormat)


class TextFormat(Struct, frozen=True):
    """A decoded ``text.format``: what to echo, and what the output must match."""

    kind: Literal["text", "json_object", "json_schema"]
    echo: Raw
    schema: bytes | None = None

    @property
    def is_strict(self) -> bool:
        """Whether the engine must enforce the whole schema or refuse the request."""
        return _strictness.decode(self.echo).strict is True


TEXT = TextFormat(kind="text", echo=Raw(b'{"type":"text"}'))


def read_format(
    data: Raw | UnsetType, where: str = "text.format", definitions: Definitions | None = None
) -> TextFormat | None:
    """Decode a format; None if absent. ``definitions`` bounds its schema; None for a format that was
    accepted before."""
    sent = wire.given(data)
    if sent is None:
        return None
    kind = wire.decode(_plain_format, sent, where=where).type
    if kind == "text":
        return TEXT
    if kind == "json_object":
        return TextFormat(kind="json_object", echo=Raw(b'{"type":"json_object"}'))
    described = wire.decode(_schema_format, bytes(sent), where=where)
    if wire.given(described.schema) is None:
        raise wire.explain("Object missing required field `schema`", where)
    wire.require_object(described.schema, f"{where}.schema")
    if definitions is not None:
        definitions.check_schema(described.schema, f"{where}.schema")
    return TextFormat(kind="json_schema", echo=wire.raw(described), schema=bytes(described.schema))
