"""How a model writes its answers: the marks around thoughts, text and calls, and the layout of calls.

``OutputFormat`` is plain data. The parser reads answers by it, the writers of grammars and structural tags
enforce it, and ``slipring inspect`` shows it. A format is found in a model's chat template
(``format_detection``) or written by hand (``family_formats``).

All strings are as the model's template writes them, white space included, because grammars enforce exactly
that. The parser accepts any white space where the format has some.
"""

import json
import re
from typing import Final

from msgspec import Struct, structs

HARMONY_MARKS: Final = (
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
)
_TOKEN: Final = re.compile(
    r"<\|[^<>|]*\|?>|<[^<>|\s]*\|>|</?[^<>|\s]*>|</?\w+\|\w+>|｜[^｜<>]*｜|\[/?[A-Z_]+\]|\]<\][^\[\]]*\[>\[",
)
"""Parts of marks that a vocabulary may have as control tokens."""
_MARK: Final = re.compile(rf"(?:{_TOKEN.pattern})(?:\w*(?:{_TOKEN.pattern}))*|</?｜[^｜<>]*｜[^<>]*>")
_UNMARKED: Final = ("name_key", "arguments_key", "id_key", "item_tag")
"""Fields of layouts that are not marks."""


def is_unmistakable(text: str) -> bool:
    """Whether a text consists of what a vocabulary may have as control tokens, and is no ordinary text."""
    return _MARK.fullmatch(text) is not None


class CallLayout(Struct, frozen=True, kw_only=True):
    """What all call layouts share: the marks around the calls of an answer, and around each of them."""

    section_open: str = ""
    """Begins the list of all calls of an answer: Kimi's ``<|tool_calls_section_begin|>``. The marks around a
    JSON array or a Python list of calls are ``section_open`` and ``section_close``."""
    section_close: str = ""
    open: str = ""
    """Begins one call: Hermes' ``<tool_call>\\n``."""
    close: str = ""
    """Ends one call. If empty, the call ends where its arguments end."""
    between: str = ""
    """Written between two calls."""

    @property
    def is_bracketed(self) -> bool:
        """Whether one pair of brackets is around all calls of an answer."""
        return False


class JsonCalls(CallLayout, frozen=True, kw_only=True, tag="json"):
    """A call is a JSON object that holds its name and its arguments: ``{"name": …, "arguments": …}``."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    """The key that templates and grammars write. The parser accepts ``arguments`` and ``parameters``."""
    id_key: str = ""
    """The key of a call's id, if the model writes one."""
    is_array: bool = False
    """Whether the calls of an answer are one JSON array: Mistral Nemo, Cohere."""
    is_bare: bool = False
    """Whether output that begins with such JSON, without a mark, is a call as well."""
    announcement: str = ""
    """A mark that may precede a bare call at any place: Llama's ``<|python_tag|>``."""

    @property
    def is_bracketed(self) -> bool:
        return self.is_array


class NamedJsonCalls(CallLayout, frozen=True, kw_only=True, tag="named_json"):
    """A call is a name, a mark and the arguments as JSON: ``[TOOL_CALLS]f[ARGS]{…}``."""

    id_open: str = ""
    """Begins an id that stands before ``open`` and the name: Solar's ``<|tool_call:begin|>``."""
    name_prefix: str = ""
    """Written before the name, and optional for the parser: Kimi's ``functions.``."""
    id_separator: str = ""
    """Separates the name from an id that follows it: Kimi's ``:``, Mistral's ``[CALL_ID]``."""
    id_is_index: bool = False
    """Whether that id is the call's number in its answer, from 0."""
    arguments_open: str
    """Ends the name and begins the arguments."""


class TaggedCalls(CallLayout, frozen=True, kw_only=True, tag="tagged"):
    """A call is a name and tagged arguments: ``<function=f><parameter=k>v</parameter></function>``.

    A value is text as it is where the tool's schema says that it is a string, and JSON otherwise, unless the
    tag itself says which of both it is.
    """

    name_open: str = ""
    """Begins the name, after ``open``: ``<function=``. If empty, the name begins the call (GLM)."""
    name_close: str = ""
    """Ends the name, ``>``. If empty, the name ends at white space or at the next mark."""
    arguments_close: str = ""
    """Ends the arguments, before ``close``: ``</function>``."""
    key_open: str
    """Begins an argument: ``<parameter=``."""
    key_close: str
    """Ends an argument's key and begins its value: ``>\\n``, or ``</arg_key><arg_value>``."""
    value_close: str
    """Ends a value: ``\\n</parameter>\\n``."""
    string_attribute: str = ""
    """Follows the key where the tag says that the value is a string: ``" string="true"``. May hold
    ``{type}`` for the name of the value's JSON type: Kimi K3's ``" type="{type}"``."""
    json_attribute: str = ""
    """Follows the key where the tag says that the value is JSON: ``" string="false"``."""
    index_attribute: str = ""
    """Follows the name; ``{index}`` in it is the call's number in its answer, from 1: Kimi K3's
    ``" index="{index}"``."""
    object_open: str = ""
    """Begins all arguments as one JSON object, which the model may write instead of tagged ones: Kimi K3."""
    object_close: str = ""
    has_cdata: bool = False
    """Whether a value may be written between ``<![CDATA[`` and ``]]>``, and then hold tags: MiniCPM5."""
    has_escapes: bool = False
    """Whether names and keys are written with ``&amp;`` for ``&`` and ``&quot;`` for quotes."""


class NestedTagCalls(CallLayout, frozen=True, kw_only=True, tag="nested_tags"):
    """A call is a tree of tags that are named by their keys, as MiniMax M3 writes it:
    ``<invoke name="f"><k>v</k></invoke>``, each tag after ``tag_prefix``."""

    tag_prefix: str
    name_open: str = '<invoke name="'
    name_close: str = '">'
    arguments_close: str = "</invoke>"
    item_tag: str = "item"
    """The tag of an entry of a list."""


class PythonCalls(CallLayout, frozen=True, kw_only=True, tag="python"):
    """Calls are a Python list of calls with keyword arguments: ``[f(a=1), g(b="x")]``."""

    is_list: bool = True
    """False: the calls stand in the section as they are, one after the other: OLMo 3."""
    is_bare: bool = False
    """Whether output that begins with such a list, without a mark, is calls as well: Llama 4."""

    @property
    def is_bracketed(self) -> bool:
        return self.is_list


class BracedCalls(CallLayout, frozen=True, kw_only=True, tag="braced"):
    """A call is ``call:f{k:v}`` with unquoted keys and strings between quote tokens: Gemma 4."""

    name_open: str = "call:"
    quote: str = '<|"|>'


Calls = JsonCalls | NamedJsonCalls | TaggedCalls | NestedTagCalls | PythonCalls | BracedCalls


class OutputFormat(Struct, frozen=True, kw_only=True):
    """How a model writes answers."""

    calls: Calls | None = None
    """None: the model writes no calls that are known."""
    think_open: str = ""
    think_close: str = ""
    """Ends a thought."""
    calls_end_thoughts: bool = False
    """Whether a call may end a thought that is not closed, as parsers of the family say: models of the family
    are known to leave the mark out. Otherwise, calls in an open thought are thought."""
    ignored: tuple[str, ...] = ()
    """Marks that structure an answer without content: Kimi K3's ``<|open|>response<|sep|>``."""
    text_open: str = ""
    """Begins text, if the model always writes marks around it. Both marks are in ``ignored`` as well."""
    text_close: str = ""
    is_harmony: bool = False
    """Whether answers are Harmony messages (gpt-oss); the other fields but ``stops`` are then unused."""
    is_addressed: bool = False
    """Whether answers are messages with recipients (Muse): ``think_open`` and ``open`` of calls then end with
    the end of a header."""
    stops: tuple[str, ...] = ()
    """Control tokens that end an answer, besides those that the model's files name."""

    def marks(self) -> frozenset[str]:
        """All strings that the parser searches, without white space around them, and their parts that may be
        control tokens. A renderer makes those visible in the model's output that are."""
        return self._marks() | self.tokens()

    def tokens(self) -> frozenset[str]:
        """The parts of marks that may be control tokens."""
        return frozenset(token for mark in self._marks() for token in _TOKEN.findall(mark))

    def _marks(self) -> frozenset[str]:
        if self.is_harmony:
            return frozenset(HARMONY_MARKS)
        fields = structs.asdict(self.calls) if self.calls is not None else {}
        marks = [value for key, value in fields.items() if isinstance(value, str) and key not in _UNMARKED]
        stripped = (mark.strip() for mark in (self.think_open, self.think_close, *self.ignored, *marks))
        return frozenset(filter(None, stripped))


def has_call_ids(format: OutputFormat) -> bool:
    """Whether the model gives ids to its calls, other than their numbers."""
    calls = format.calls
    if isinstance(calls, NamedJsonCalls):
        return bool(calls.id_open or calls.id_separator) and not calls.id_is_index
    return isinstance(calls, JsonCalls) and bool(calls.id_key)


def written_call_ids(format: OutputFormat, answer: str) -> list[str]:
    """The ids that a model gave to the calls of its answer, in order; empty if the format has none, or they
    are unclear.

    slipring sends the client other ids. Where a model writes ids, the prompt for its next answer must name
    them beside the outputs, because the answer stays in the context as the model wrote it.
    """
    calls = format.calls
    if not has_call_ids(format):
        return []
    if isinstance(calls, NamedJsonCalls):
        if calls.id_open:
            return _ids_between(calls.id_open, calls.open, answer)
        return _ids_between(calls.id_separator, calls.arguments_open, answer)
    return _ids_in_array(calls, answer) if isinstance(calls, JsonCalls) and calls.section_open else []


def _ids_between(before: str, after: str, answer: str) -> list[str]:
    pattern = rf"{re.escape(before.strip())}\s*([\w-]+)\s*{re.escape(after.strip())}"
    return re.findall(pattern, answer)


def _ids_in_array(layout: JsonCalls, answer: str) -> list[str]:
    text = answer.partition(layout.section_open.strip())[2].lstrip()
    try:
        calls, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(calls, list):
        return []
    return [str(call.get(layout.id_key, "")) for call in calls if isinstance(call, dict)]
