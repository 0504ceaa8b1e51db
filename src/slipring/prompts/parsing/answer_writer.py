"""Writes answers as a model writes them: the inverse of the parser.

The parser reads what is written here as the same thoughts, text and calls, except for what a format
cannot carry:

- White space around thoughts, and around text that is next to a mark, is not part of them.
- No format has escapes for its marks in thoughts and text.
- In ``TaggedCalls`` a value must not contain the marks that end values and calls or begin a key. A string
  that looks like JSON stays a string only if the tool's schema or the tag says so.
- In ``NestedTagCalls`` a string must not contain ``tag_prefix``, keys must be names of tags, and empty lists
  and objects are known by the tool's schema.
- In ``BracedCalls`` a string must not contain ``quote``, and keys no punctuation.
- In ``PythonCalls`` keys are identifiers.
- In Harmony no string contains a mark, and an answer has one call. In messages with recipients no string
  contains a mark of messages.
- Calls without marks are calls only if no text precedes them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from slipring.prompts.parsing.calls.json_scanner import quoted, type_of
from slipring.prompts.parsing.output_format import (
    HARMONY_MARKS,
    Calls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)

if TYPE_CHECKING:  # engines without a tokenizer write calls too
    from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder
    from slipring.prompts.tokenization.tokenizer import Vocabulary

_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _, _ = HARMONY_MARKS
_NEXT_MESSAGE: Final = f"{_END}{_START}assistant"
_WORDS: Final = {True: "True", False: "False", None: "None"}


class Call(Struct, frozen=True):
    """A call that an answer makes."""

    name: str
    arguments: Mapping[str, Any] | str
    """A JSON object, or its text. Layouts with JSON arguments write a text as it is."""
    index: int = 0
    """The call's number, for layouts whose ids count calls: of an answer or, as in Kimi K2's and Cohere's
    templates, of the conversation. It is up to the caller."""
    id: str = ""
    """Written by layouts with other ids; if empty, made of the index."""

    @property
    def json(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else _json(self.arguments)

    @property
    def values(self) -> Mapping[str, Any]:
        """The arguments as values."""
        return json.loads(self.arguments) if isinstance(self.arguments, str) else self.arguments


class Piece(Struct, frozen=True):
    """A part of an answer."""

    text: str
    is_mark: bool = False
    """Whether the format wrote it. Only there may a control token of the vocabulary be."""


def piece_ids(pieces: Iterable[Piece], vocabulary: "Vocabulary", finder: "ControlTokenFinder") -> list[int]:
    """The ids of an answer: of marks that are control tokens, and of each text between them."""
    ids: list[int] = []
    text = ""
    for piece in pieces:
        for part in finder.split(piece.text) if piece.is_mark else (piece.text,):
            if isinstance(part, int):
                ids += [*vocabulary.encode(text), part]
                text = ""
            else:
                text += part
    return ids + vocabulary.encode(text)


def answer_pieces(
    format: OutputFormat,
    thoughts: str = "",
    text: str = "",
    calls: Sequence[Call] = (),
    *,
    opened_thought: bool = False,
) -> list[Piece]:
    """Write a whole answer, without the control token that ends it, in pieces that tell marks from content.

    ``opened_thought``: the prompt has begun a thought. Raises ``ValueError`` if the format has no place for
    the thoughts or calls.
    """
    if format.is_harmony:
        return _merged(_harmony_answer(thoughts, text, calls, opened_thought=opened_thought))
    pieces: list[Piece] = []
    if thoughts or opened_thought:
        if not format.think_close:
            raise ValueError("the format has no thoughts")
        pieces += [_mark("" if opened_thought else format.think_open), Piece(thoughts)]
        pieces.append(_mark(format.think_close))
    if text:
        pieces += [_mark(format.text_open), Piece(text), _mark(format.text_close)]
    if text and calls:
        pieces.append(_mark(_after_text(format.calls)))
    return _merged([*pieces, *write_calls(format, calls)])


def write_calls(format: OutputFormat, calls: Sequence[Call]) -> list[Piece]:
    """Write the calls of an answer. Raises ``ValueError`` if the format has no place for them."""
    if not calls:
        return []
    if format.is_harmony:
        return _merged(_harmony_call(calls))
    layout = format.calls
    if layout is None:
        raise ValueError("the format has no calls")
    bodies = [_body(layout, call, number) for number, call in enumerate(calls, 1)]
    between = layout.between
    if layout.is_bracketed:
        written = [Piece("["), *_joined(", ", bodies), Piece("]")]
    else:
        if isinstance(layout, JsonCalls) and not (layout.open or layout.close or between):
            between = "\n"
        written = [*_joined(between, bodies)]
    return _merged([_mark(layout.section_open), *written, _mark(layout.section_close)])


def _mark(text: str) -> Piece:
    return Piece(text, is_mark=True)


def _joined(between: str, parts: Sequence[Sequence[Piece]]) -> Iterable[Piece]:
    for number, part in enumerate(parts):
        if number:
            yield _mark(between)
        yield from part


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces without empty ones; adjacent ones of a kind are one."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and merged[-1].is_mark == piece.is_mark:
            merged[-1] = Piece(merged[-1].text + piece.text, piece.is_mark)
        elif piece.text:
            merged.append(piece)
    return merged


def _after_text(layout: Calls | None) -> str:
    """What stands between text and calls."""
    if layout is None or layout.section_open:
        return ""
    if layout.open or not isinstance(layout, JsonCalls | PythonCalls):
        return layout.between
    if isinstance(layout, JsonCalls) and layout.announcement:
        return layout.announcement
    raise ValueError("a call without a mark cannot follow text")


def _body(layout: Calls, call: Call, number: int) -> list[Piece]:
    """A call with the marks around it. ``number``: of the call in its answer, from 1."""
    pieces = [_mark(layout.open), *_inner(layout, call, number), _mark(layout.close)]
    if isinstance(layout, NamedJsonCalls) and layout.id_open:
        return [_mark(layout.id_open), Piece(_id(call)), *pieces]
    return pieces


def _inner(layout: Calls, call: Call, number: int) -> list[Piece]:
    match layout:
        case JsonCalls():
            return [Piece(_json_call(layout, call))]
        case NamedJsonCalls():
            return _named_json_call(layout, call)
        case TaggedCalls():
            return _tagged_call(layout, call, number)
        case NestedTagCalls():
            return _nested_tag_call(layout, call)
        case PythonCalls():
            arguments = ", ".join(f"{key}={_python(value)}" for key, value in call.values.items())
            return [Piece(f"{call.name}({arguments})")]
    return [_mark(layout.name_open), Piece(call.name), *_braced(call.values, layout.quote)]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_call(layout: JsonCalls, call: Call) -> str:
    members = [(layout.name_key, quoted(call.name)), (layout.arguments_key, call.json)]
    if layout.id_key == "id":  # Mistral's follows, with nine characters; Cohere's precedes and counts
        members.append((layout.id_key, quoted(_id(call))))
    elif layout.id_key:
        members.insert(0, (layout.id_key, quoted(call.id or str(call.index))))
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in members) + "}"


def _id(call: Call) -> str:
    """An id as Mistral's models write it."""
    return call.id or f"{call.index:09}"


def _named_json_call(layout: NamedJsonCalls, call: Call) -> list[Piece]:
    pieces = [_mark(layout.name_prefix), Piece(call.name)]
    if layout.id_separator:
        pieces += [_mark(layout.id_separator), Piece(str(call.index) if layout.id_is_index else _id(call))]
    return [*pieces, _mark(layout.arguments_open), Piece(call.json)]


def _tagged_call(layout: TaggedCalls, call: Call, number: int) -> list[Piece]:
    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;") if layout.has_escapes else text

    pieces = [_mark(layout.name_open), Piece(escaped(call.name))]
    pieces.append(_mark(layout.index_attribute.replace("{index}", str(number)) + layout.name_close))
    for key, value in call.values.items():
        text = value if isinstance(value, str) else _json(value)
        pieces += [_mark(layout.key_open), Piece(escaped(key))]
        pieces.append(_mark(_attribute(layout, value) + layout.key_close))
        pieces += [Piece(text), _mark(layout.value_close)]
    return [*pieces, _mark(layout.arguments_close)]


def _attribute(layout: TaggedCalls, value: object) -> str:
    """What the tag of an argument says about its value."""
    if "{type}" in layout.string_attribute:
        return layout.string_attribute.replace("{type}", type_of(_json(value)))
    return layout.string_attribute if isinstance(value, str) else layout.json_attribute


def _nested_tag_call(layout: NestedTagCalls, call: Call) -> list[Piece]:
    def element(tag: str, value: Any) -> list[Piece]:
        opening, closing = f"{layout.tag_prefix}<", f"{layout.tag_prefix}</"
        return [
            _mark(opening),
            Piece(tag),
            _mark(">"),
            *content(value),
            _mark(closing),
            Piece(tag),
            _mark(">"),
        ]

    def content(value: Any) -> list[Piece]:
        if isinstance(value, Mapping):
            return [piece for key, inner in value.items() for piece in element(key, inner)]
        if isinstance(value, list):
            return [piece for inner in value for piece in element(layout.item_tag, inner)]
        return [Piece(value if isinstance(value, str) else _json(value))]

    return [
        *(_mark(layout.tag_prefix + layout.name_open), Piece(call.name), _mark(layout.name_close)),
        *content(call.values),
        _mark(layout.tag_prefix + layout.arguments_close),
    ]


def _python(value: Any) -> str:
    """A Python literal."""
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quoted(key)}: {_python(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return _json(value)


def _braced(value: Any, quote: str) -> list[Piece]:
    """A value with unquoted keys, and strings between quote tokens."""
    if isinstance(value, str):
        return [_mark(quote), Piece(value), _mark(quote)]
    if isinstance(value, Mapping):
        members = [[Piece(f"{key}:"), *_braced(inner, quote)] for key, inner in value.items()]
        return [Piece("{"), *_joined(",", members), Piece("}")]
    if isinstance(value, list):
        return [Piece("["), *_joined(",", [_braced(inner, quote) for inner in value]), Piece("]")]
    return [Piece(_json(value))]


def _harmony_answer(
    thoughts: str, text: str, calls: Sequence[Call], *, opened_thought: bool
) -> Iterable[Piece]:
    messages: list[list[Piece]] = []
    if opened_thought:
        messages.append([Piece(thoughts)])
    elif thoughts:
        messages.append([_mark(f"{_CHANNEL}analysis{_MESSAGE}"), Piece(thoughts)])
    if text:
        channel = "commentary" if calls else "final"
        messages.append([_mark(f"{_CHANNEL}{channel}{_MESSAGE}"), Piece(text)])
    if calls:
        messages.append(_harmony_call(calls))
    return _joined(_NEXT_MESSAGE, messages)


def _harmony_call(calls: Sequence[Call]) -> list[Piece]:
    if len(calls) > 1:
        raise ValueError("a Harmony answer has one call")
    return [
        *(_mark(f"{_CHANNEL}commentary to=functions."), Piece(calls[0].name)),
        *(_mark(f" {_CONSTRAIN}json{_MESSAGE}"), Piece(calls[0].json)),
    ]
