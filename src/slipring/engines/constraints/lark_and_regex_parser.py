r"""Parses grammars in Lark's notation, and the regular expressions in them, as llguidance reads both.

References to terminals are replaced by their patterns. Attributes and parameters of rules, ``~`` and ``&``
between terminals, and tokens by name raise ``Unsupported``. The syntax of regular expressions is that of
Rust's ``regex``; set operations, scripts, anchors and flags other than ``i`` and ``s`` raise ``Unsupported``.
Both must be valid: they have been checked before.

Which characters beyond ASCII belong to ``\w`` or differ only in case is up to llguidance. So a set of
characters has two bounds: the characters that it certainly contains, and those that it possibly contains.
Within ASCII, which has all characters that JSON escapes, both are equal.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

from msgspec import Struct

Ranges = tuple[tuple[int, int], ...]
"""First and last code of each range, sorted, without overlaps."""
LAST_CODE: Final = 0x10FFFF
_ASCII_LAST: Final = 0x7F
_NOT_ASCII: Final[Ranges] = ((_ASCII_LAST + 1, LAST_CODE),)
JSON_ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""The characters that JSON writes as a backslash and one letter. Other control characters are not supported:
JSON writes them as ``\\u…``, which one letter after the backslash does not identify."""
_ESCAPED: Final[Ranges] = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges, and merge those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def invert_ranges(ranges: Ranges) -> Ranges:
    """All codes that are not in the ranges."""
    inverted, at = [], 0
    for first, last in ranges:
        if at < first:
            inverted.append((at, first - 1))
        at = last + 1
    return (*inverted, (at, LAST_CODE)) if at <= LAST_CODE else tuple(inverted)


def subtract_ranges(ranges: Ranges, removed: Ranges) -> Ranges:
    return invert_ranges(merge_ranges((*invert_ranges(ranges), *removed)))


class CharacterSet(Struct, frozen=True, cache_hash=True):
    """A set that one character of a text is in."""

    source: str
    """The set as written within the brackets of a character class."""
    certain: Ranges
    possible: Ranges
    ignores_case: bool = False
    """Whether upper and lower case are equal."""

    def escapes(self) -> str:
        """The letters that follow the backslash, for the certain members that JSON escapes."""
        return "".join(letter for each, letter in JSON_ESCAPES.items() if _contains(self.certain, ord(each)))

    def unescaped(self) -> Ranges:
        """The certain members that JSON does not escape."""
        return subtract_ranges(self.certain, _ESCAPED)

    def plain(self) -> str | None:
        """A regular expression of the members that JSON does not escape; None if there are none."""
        if not subtract_ranges(self.possible, _ESCAPED):
            return None
        needs_no_escape = subtract_ranges(self.possible, _ESCAPED) == self.possible
        pattern = f"[{self.source}]" if needs_no_escape else rf'[[{self.source}]--["\\\x00-\x1f]]'
        return f"(?i:{pattern})" if self.ignores_case else pattern

    def ignore_case(self) -> "CharacterSet":
        """The set with both cases of its letters."""
        certain = merge_ranges(
            (*self.certain, *(each for pair in self.certain for each in _other_cases(*pair)))
        )
        # Some letters beyond ASCII are the other case of an ASCII letter.
        return CharacterSet(self.source, certain, merge_ranges((*certain, *_NOT_ASCII)), ignores_case=True)


_MAX_CASED_CODES = 512
"""Codes of a range whose other cases are looked up."""


def _other_cases(first: int, last: int) -> list[tuple[int, int]]:
    codes = range(first, min(last, first + _MAX_CASED_CODES) + 1)
    cases = [other for code in codes for other in (chr(code).lower(), chr(code).upper())]
    return [(ord(other), ord(other)) for other in cases if len(other) == 1]


def _contains(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def single(character: str) -> CharacterSet:
    """The set of one character."""
    code = ord(character)
    source = character if character.isalnum() and code <= _ASCII_LAST else rf"\x{{{code:x}}}"
    return CharacterSet(source, ((code, code),), ((code, code),))


def code_range(first: int, last: int) -> CharacterSet:
    return CharacterSet(rf"\x{{{first:x}}}-\x{{{last:x}}}", ((first, last),), ((first, last),))


def union(parts: list[CharacterSet]) -> CharacterSet:
    return CharacterSet(
        "".join(part.source for part in parts),
        merge_ranges(each for part in parts for each in part.certain),
        merge_ranges(each for part in parts for each in part.possible),
    )


def complement(characters: CharacterSet) -> CharacterSet:
    source = f"[^{characters.source}]"
    return CharacterSet(
        source, invert_ranges(characters.possible), invert_ranges(characters.certain), characters.ignores_case
    )


ANY: Final = CharacterSet(r"\x{0}-\x{10FFFF}", invert_ranges(()), invert_ranges(()))
NOT_A_NEWLINE: Final = complement(single("\n"))


def _known_in_ascii(source: str, codes: Iterable[int]) -> CharacterSet:
    certain = merge_ranges((code, code) for code in codes)
    return CharacterSet(source, certain, merge_ranges((*certain, *_NOT_ASCII)))


_CLASSES: Final = {
    "d": _known_in_ascii(r"\d", range(ord("0"), ord("9") + 1)),
    "w": _known_in_ascii(r"\w", (code for code in range(128) if chr(code).isalnum() or chr(code) == "_")),
    "s": _known_in_ascii(r"\s", map(ord, " \t\n\r\f\v")),
}


def class_escape(letter: str) -> CharacterSet | None:
    """The set of an escape such as ``\\d``; None if ``letter`` is not one."""
    known = _CLASSES.get(letter.lower())
    if known is None or letter.islower():
        return known
    return CharacterSet(f"\\{letter}", invert_ranges(known.possible), invert_ranges(known.certain))


def unicode_category(name: str) -> CharacterSet | None:
    """The set of ``\\p{name}``; None unless ``name`` is a general category in its short form."""
    if not 1 <= len(name) <= 2 or name[0] not in "LMNPSZC":
        return None
    codes = (code for code in range(128) if unicodedata.category(chr(code)).startswith(name))
    return _known_in_ascii(rf"\p{{{name}}}", codes)


_MAX_BEGINNINGS = 200
_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = re.compile(r"\\(?:[xuU]\{(H+)\}|x(HH)|u(HHHH)|U(H{8}))".replace("H", "[0-9a-fA-F]"))
_CATEGORY: Final = re.compile(r"\\[pP](?:\{(\^?)(\w+)\}|(\w))")
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_NAMED: Final = re.compile(r"\(\?P?<\w+>")
_SUPPORTED_FLAGS: Final = frozenset("imsu")
"""``m`` has no effect without anchors, and ``u`` is the default."""
_TOKEN: Final = re.compile(
    r"""
      (?P<skip>(?:\#|//)[^\n]*|[ \t]+)
    | (?P<string>"(?:\\.|[^"\\])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<directive>%\w+)
    | (?P<terminal>_?[A-Z][_A-Z0-9\-]*)
    | (?P<rule>!?[_?]?[a-z][_a-z0-9\-]*)
    | (?P<number>\d+)
    | (?P<newline>(?:\r?\n)+[ \t]*)
    | (?P<sign>->|\.\.|[:|()\[\]{},.~?*+])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMON: Final = r"""
DIGIT: /[0-9]/
HEXDIGIT: /[0-9A-Fa-f]/
INT: DIGIT+
SIGNED_INT: /[+-]/? INT
DECIMAL: INT "." INT? | "." INT
_EXP: "e"i SIGNED_INT
FLOAT: INT _EXP | DECIMAL _EXP?
SIGNED_FLOAT: /[+-]/? FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: /[+-]/? NUMBER
ESCAPED_STRING: "\"" /([^"\\]|\\.)*/ "\""
LCASE_LETTER: /[a-z]/
UCASE_LETTER: /[A-Z]/
LETTER: /[A-Za-z]/
WORD: LETTER+
CNAME: /[A-Za-z_]/ /[0-9A-Za-z_]/*
WS_INLINE: /[ \t]/+
WS: /[ \t\f\r\n]/+
CR: "\r"
LF: "\n"
NEWLINE: (CR? LF)+
SH_COMMENT: /#[^\n]*/
CPP_COMMENT: "//" /[^\n]*/
C_COMMENT: "/*" /[^*]/* /[*]+/ (/[^\/*]/ /[^*]/* /[*]+/)* "/"
SQL_COMMENT: "--" /[^\n]*/
"""
"""Terminals of Lark's ``common`` library that llguidance can import."""
_HEX_ESCAPE: Final = re.compile(r"(\\[^x])|\\x(..)")
_UNBOUNDED: Final = 2**31 - 1
Token = tuple[str, str]
"""Kind and text."""


class Unsupported(Exception):
    """The grammar cannot be converted: it uses an unsupported feature, or exceeds a limit."""


class Sequence(Struct, frozen=True, cache_hash=True):
    items: tuple["Node", ...]


class Either(Struct, frozen=True, cache_hash=True):
    options: tuple["Node", ...]


class Repeated(Struct, frozen=True, cache_hash=True):
    item: "Node"
    least: int
    most: int | None


class Terminal(Struct, frozen=True, cache_hash=True):
    """A pattern that a lexer matches at once, as long as possible."""

    pattern: "Node"
    is_ignored: bool = False
    """Whether it is skipped between other terminals (``%ignore``)."""


class Rule(Struct, frozen=True, cache_hash=True):
    """A reference to a rule."""

    name: str


Node = CharacterSet | Sequence | Either | Repeated | Terminal | Rule
EMPTY = Sequence(())


def is_nullable(pattern: Node) -> bool:
    """Whether a pattern matches the empty text."""
    match pattern:
        case Sequence(items):
            return all(map(is_nullable, items))
        case Either(options):
            return any(map(is_nullable, options))
        case Repeated(item, least, _):
            return least == 0 or is_nullable(item)
    return False


def beginnings(pattern: Node) -> Iterator[tuple[CharacterSet, Node]]:
    """How matching texts begin: pairs of the set of the first character and the pattern of the rest."""
    match pattern:
        case CharacterSet():
            yield pattern, EMPTY
        case Either(options):
            for option in options:
                yield from beginnings(option)
        case Sequence(items):
            for number, item in enumerate(items):
                for first, rest in beginnings(item):
                    yield first, Sequence((rest, *items[number + 1 :]))
                if not is_nullable(item):
                    break
        case Repeated(item, least, most) if most != 0:
            again = Repeated(item, max(least - 1, 0), most - 1 if most is not None else None)
            for first, rest in beginnings(item):
                yield first, Sequence((rest, again))


def without_empty(pattern: Node) -> Node:
    """The pattern without the empty text. Raises ``Unsupported`` if that is too large."""
    if not is_nullable(pattern):
        return pattern
    ways = tuple(islice(beginnings(pattern), _MAX_BEGINNINGS + 1))
    if len(ways) > _MAX_BEGINNINGS:
        raise Unsupported("too many ways in which a terminal begins")
    return Either(tuple(map(Sequence, ways)))


def parse_regex(expression: str, flags: str = "") -> Node:
    """Parse an expression. Raises ``Unsupported``."""
    parser = _RegexParser(expression)
    tree = parser.alternatives(_with_flags(frozenset(), flags, ""))
    if parser.at < len(expression):
        raise Unsupported("unbalanced parenthesis")
    return tree


def literal(text: str, *, ignores_case: bool = False) -> Node:
    """The tree of a text that matches itself."""
    parts = [single(character) for character in text]
    return Sequence(tuple(part.ignore_case() if ignores_case else part for part in parts))


def _with_flags(flags: frozenset[str], added: str, removed: str) -> frozenset[str]:
    if not _SUPPORTED_FLAGS.issuperset(added) or not {"i", "m", "s"}.issuperset(removed):
        raise Unsupported("flag")
    return (flags | set(added)) - set(removed)


class _RegexParser:
    def __init__(self, expression: str) -> None:
        self._text = expression
        self.at = 0

    def alternatives(self, flags: frozenset[str]) -> Node:
        """Parse up to the end, or up to the closing parenthesis."""
        options: list[Node] = []
        items: list[Node] = []
        while self.at < len(self._text) and self._text[self.at] != ")":
            if self._take("|"):
                options.append(Sequence(tuple(items)))
                items = []
            elif (match := _FLAGS.match(self._text, self.at)) and match[3] == ")":
                self.at = match.end()
                flags = _with_flags(flags, match[1], match[2] or "")
            else:
                items.append(self._repeated(self._atom(flags)))
        options.append(Sequence(tuple(items)))
        return Either(tuple(options)) if len(options) > 1 else options[0]

    def _take(self, token: str) -> bool:
        taken = self._text.startswith(token, self.at)
        self.at += len(token) * taken
        return taken

    def _repeated(self, item: Node) -> Node:
        while True:
            least, most = 0, None
            if self._take("+"):
                least = 1
            elif self._take("?"):
                most = 1
            elif count := _COUNT.match(self._text, self.at):
                self.at = count.end()
                least = int(count[1])
                most = (int(count[3]) if count[3] else None) if count[2] else least
            elif not self._take("*"):
                return item
            self._take("?")  # lazy or greedy: the same texts match
            item = Repeated(item, least, most)

    def _atom(self, flags: frozenset[str]) -> Node:
        if self._text[self.at] == "(":
            return self._group(flags)
        if self._text[self.at] in "^$":
            raise Unsupported("anchor")
        if self._take("."):
            return ANY if "s" in flags else NOT_A_NEWLINE
        if self._take("["):
            return self._class("i" in flags)
        character = self._character()
        return character.ignore_case() if "i" in flags else character

    def _group(self, flags: frozenset[str]) -> Node:
        if match := _FLAGS.match(self._text, self.at):
            flags = _with_flags(flags, match[1], match[2] or "")
            self.at = match.end()
        elif match := _NAMED.match(self._text, self.at):
            self.at = match.end()
        else:
            self.at += 1
            if self._text.startswith("?", self.at):
                raise Unsupported("group")
        tree = self.alternatives(flags)
        if not self._take(")"):
            raise Unsupported("unbalanced parenthesis")
        return tree

    def _character(self) -> CharacterSet:
        """Parse one character or escape, alone or within a class."""
        character = self._text[self.at]
        if character != "\\":
            self.at += 1
            return single(character)
        if match := _HEX.match(self._text, self.at):
            self.at = match.end()
            return single(chr(int(next(filter(None, match.groups())), 16)))
        if match := _CATEGORY.match(self._text, self.at):
            self.at = match.end()
            known = unicode_category(match[2] or match[3])
            if known is None:
                raise Unsupported("character property")
            return complement(known) if (match[0][1] == "P") != bool(match[1]) else known
        letter = self._text[self.at + 1 : self.at + 2]
        self.at += 2
        if letter in _CONTROL and letter:
            return single(_CONTROL[letter])
        if (known := class_escape(letter)) is not None:
            return known
        if not letter or letter.isalnum() or letter in "<>":
            raise Unsupported("escape")
        return single(letter)

    def _class(self, ignores_case: bool) -> CharacterSet:
        """Parse a class after its opening bracket."""
        is_negated = self._take("^")
        parts: list[CharacterSet] = []
        while self._text.startswith("-", self.at):
            self.at += 1
            parts.append(single("-"))
        if not parts and self._take("]"):
            parts.append(single("]"))
        while not self._take("]"):
            if self.at >= len(self._text) or self._text[self.at] == "[":
                raise Unsupported("nested class")
            if self._text[self.at : self.at + 2] in ("&&", "--", "~~"):
                raise Unsupported("set operation")
            parts.append(self._member())
        members = union(parts).ignore_case() if ignores_case else union(parts)
        return complement(members) if is_negated else members

    def _member(self) -> CharacterSet:
        first = self._character()
        following = self._text[self.at + 1 : self.at + 2]
        if not self._text.startswith("-", self.at) or following in ("]", "-", ""):
            return first
        self.at += 1
        last = self._character()
        return code_range(_code(first), _code(last))


def _code(characters: CharacterSet) -> int:
    if len(characters.certain) != 1 or characters.certain[0][0] != characters.certain[0][1]:
        raise Unsupported("range of sets")
    return characters.certain[0][0]


class LarkGrammar(Struct, frozen=True):
    """A parsed grammar. Its start rule is ``start``."""

    rules: dict[str, Node]
    ignored: Terminal | None
    """What is skipped between terminals; None if nothing is."""


def parse_lark(text: str) -> LarkGrammar:
    """Parse a grammar. Raises ``Unsupported``."""
    source = _Source(text)
    source.split()
    rules = {name: _RuleParser(source, tokens).parse() for name, tokens in source.rules.items()}
    ignored = tuple(_TerminalParser(source, tokens).parse() for tokens in source.ignored)
    return LarkGrammar(rules, Terminal(Either(ignored), is_ignored=True) if ignored else None)


class _Source:
    """Splits a grammar into definitions, and resolves the names of terminals."""

    def __init__(self, text: str) -> None:
        self._lines = _lines(text)
        self.rules: dict[str, list[Token]] = {}
        self.ignored: list[list[Token]] = []
        self._terminals: dict[str, list[Token]] = {}
        self._parsed: dict[str, Node] = {}

    def split(self) -> None:
        for line in self._lines:
            kind, text = line[0]
            if kind == "directive":
                self._read_directive(text, line[1:])
            elif line[1:2] != [("sign", ":")] or kind not in ("rule", "terminal"):
                raise Unsupported("not a definition")
            else:
                definitions = self.rules if kind == "rule" else self._terminals
                definitions[text.lstrip("!?")] = line[2:]

    def _read_directive(self, directive: str, line: list[Token]) -> None:
        if directive == "%ignore":
            self.ignored.append(line)
            return
        if directive != "%import" or line[:1] != [("rule", "common")]:
            raise Unsupported("directive")
        names = [text for kind, text in line if kind == "terminal"]
        if ("sign", "->") in line:
            self._import(names[0], names[1] if len(names) == 2 else "")
        else:
            for name in names:
                self._import(name, name)

    def _import(self, name: str, alias: str) -> None:
        if not alias:
            raise Unsupported("import without a name")
        self._parsed[alias] = _common().terminal(name)

    def terminal(self, name: str) -> Node:
        """The pattern of a terminal."""
        if name not in self._parsed:
            tokens = self._terminals.pop(name, None)
            if tokens is None:
                raise Unsupported("undefined name")
            self._parsed[name] = _TerminalParser(self, tokens).parse()
        return self._parsed[name]


@lru_cache(maxsize=1)
def _common() -> _Source:
    source = _Source(_COMMON)
    source.split()
    return source


def _lines(text: str) -> list[list[Token]]:
    """The tokens of each definition or directive."""
    lines: list[list[Token]] = [[]]
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Unsupported("unexpected token")
        at, kind = token.end(), str(token.lastgroup)
        if kind == "newline":
            lines.append([])
        elif kind != "skip":
            if token[0] == "|" and not lines[-1] and len(lines) > 1:
                # A line that begins with "|" continues the previous one, over empty lines and comments.
                while len(lines) > 1 and not lines[-1]:
                    lines.pop()
            lines[-1].append((kind, token[0]))
    return [line for line in lines if line]


class _TerminalParser:
    """Parses the definition of a terminal."""

    def __init__(self, source: _Source, tokens: list[Token]) -> None:
        self._source = source
        self._tokens = tokens
        self._at = 0

    def parse(self) -> Node:
        """Parse all tokens."""
        node = self._alternatives()
        if self._at < len(self._tokens):
            raise Unsupported("unexpected token")
        return node

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return Either(tuple(options)) if len(options) > 1 else options[0]

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._next() not in (None, ("sign", "|"), ("sign", ")"), ("sign", "]"), ("sign", "->")):
            items.append(self._item())
        if self._take("->"):
            self._at += 1
        return Sequence(tuple(items)) if len(items) != 1 else items[0]

    def _next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, sign: str) -> bool:
        taken = self._next() == ("sign", sign)
        self._at += taken
        return taken

    def _item(self) -> Node:
        item = self._atom()
        if self._take("*"):
            return Repeated(item, 0, None)
        if self._take("+"):
            return Repeated(item, 1, None)
        if self._take("?"):
            return Repeated(item, 0, 1)
        if self._take("~"):
            least = self._number()
            return self._repeated(item, least, self._number() if self._take("..") else least)
        if self._take("{"):
            least = 0 if self._next() == ("sign", ",") else self._number()
            most: int | None = least
            if self._take(","):
                most = None if self._next() == ("sign", "}") else self._number()
            if not self._take("}"):
                raise Unsupported("count")
            return self._repeated(item, least, most)
        return item

    def _repeated(self, item: Node, least: int, most: int | None) -> Node:
        return Repeated(item, least, None if most == _UNBOUNDED else most)

    def _number(self) -> int:
        kind, text = self._next() or ("", "")
        if kind != "number":
            raise Unsupported("count")
        self._at += 1
        return int(text)

    def _atom(self) -> Node:
        if self._take("("):
            node = self._alternatives()
            if not self._take(")"):
                raise Unsupported("unbalanced parenthesis")
            return node
        if self._take("["):
            node = self._alternatives()
            if not self._take("]"):
                raise Unsupported("unbalanced bracket")
            return Repeated(node, 0, 1)
        kind, text = self._next() or ("", "")
        self._at += 1
        if kind in ("rule", "terminal"):
            return self._reference(kind, text)
        return self._pattern_node(self._value(kind, text))

    def _reference(self, kind: str, name: str) -> Node:
        if kind == "rule":
            raise Unsupported("rule within a terminal")
        return self._source.terminal(name)

    def _pattern_node(self, pattern: Node) -> Node:
        return pattern

    def _value(self, kind: str, text: str) -> Node:
        if kind == "regex":
            end = text.rindex("/")
            return parse_regex(text[1:end], text[end + 1 :])
        if kind != "string":
            raise Unsupported("unexpected token")
        string = _unquote(text.removesuffix("i"))
        if not self._take(".."):
            return literal(string, ignores_case=text.endswith("i"))
        kind, text = self._next() or ("", "")
        self._at += 1
        last = _unquote(text) if kind == "string" else ""
        if len(string) != 1 or len(last) != 1:
            raise Unsupported("range")
        return code_range(ord(string), ord(last))


class _RuleParser(_TerminalParser):
    """Parses the definition of a rule: patterns become terminals, names become rules or terminals."""

    def _reference(self, kind: str, name: str) -> Node:
        return Rule(name) if kind == "rule" else Terminal(self._source.terminal(name))

    def _pattern_node(self, pattern: Node) -> Node:
        return Terminal(pattern)


def _unquote(quoted: str) -> str:
    """The text of a string literal: JSON, plus escapes such as ``\\x41``."""
    try:
        return str(json.loads(_HEX_ESCAPE.sub(lambda match: match[1] or rf"\u00{match[2]}", quoted)))
    except ValueError:
        raise Unsupported("string") from None
