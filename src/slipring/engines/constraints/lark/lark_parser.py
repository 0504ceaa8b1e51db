"""Grammars in Lark's notation, as llguidance reads them, as trees.

Terminals are put in where they are named. What has no counterpart elsewhere (attributes of rules, parameters,
``~`` and ``&`` between terminals, tokens by name) raises ``Unknown``; what is no grammar has been refused
before.
"""

import json
import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from slipring.engines.constraints.lark.character_sets import span
from slipring.engines.constraints.lark.regex_parser import literal, read_pattern
from slipring.engines.constraints.lark.syntax_tree import (
    Either,
    Node,
    Repeated,
    Rule,
    Sequence,
    Terminal,
    Unknown,
)

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
"""What can be imported: the terminals of Lark's own library that llguidance knows."""
_TWO_DIGITS: Final = re.compile(r"(\\[^x])|\\x(..)")
_ENDLESS: Final = 2**31 - 1


class Definition(Struct, frozen=True):
    rules: dict[str, Node]
    ignored: Terminal | None
    """What may stand between terminals, if anything."""


def read_definition(text: str) -> Definition:
    """The rules of a grammar; the first to be asked for is ``start``."""
    reader = _Reader(text)
    reader.read()
    rules = {name: _Rules(reader, tokens).alternatives() for name, tokens in reader.rules.items()}
    ignored = tuple(_Terminals(reader, tokens).alternatives() for tokens in reader.ignored)
    return Definition(rules, Terminal(Either(ignored), is_ignored=True) if ignored else None)


Token = tuple[str, str]


class _Reader:
    """Takes a grammar apart by its lines, and terminals together."""

    def __init__(self, text: str) -> None:
        self._lines = _lines(text)
        self.rules: dict[str, list[Token]] = {}
        self.ignored: list[list[Token]] = []
        self._terminals: dict[str, list[Token]] = {}
        self._read: dict[str, Node] = {}

    def read(self) -> None:
        for line in self._lines:
            kind, text = line[0]
            if kind == "directive":
                self._direct(text, line[1:])
            elif line[1:2] != [("sign", ":")] or kind not in ("rule", "terminal"):
                raise Unknown("a definition")
            else:
                named = self.rules if kind == "rule" else self._terminals
                named[text.lstrip("!?")] = line[2:]

    def _direct(self, directive: str, line: list[Token]) -> None:
        if directive == "%ignore":
            self.ignored.append(line)
            return
        if directive != "%import" or line[:1] != [("rule", "common")]:
            raise Unknown("a directive")
        names = [text for kind, text in line if kind == "terminal"]
        if ("sign", "->") in line:
            self._import(names[0], names[1] if len(names) == 2 else "")
        else:
            for name in names:
                self._import(name, name)

    def _import(self, name: str, alias: str) -> None:
        if not alias:
            raise Unknown("a name for what is imported")
        self._read[alias] = _common().terminal(name)

    def terminal(self, name: str) -> Node:
        """What a terminal stands for."""
        if name not in self._read:
            tokens = self._terminals.pop(name, None)
            if tokens is None:
                raise Unknown("a name")
            self._read[name] = _Terminals(self, tokens).alternatives()
        return self._read[name]


@lru_cache(maxsize=1)
def _common() -> _Reader:
    reader = _Reader(_COMMON)
    reader.read()
    return reader


def _lines(text: str) -> list[list[Token]]:
    """The tokens of each definition or directive."""
    lines: list[list[Token]] = [[]]
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Unknown("a sign")
        at, kind = found.end(), str(found.lastgroup)
        if kind == "newline":
            lines.append([])
        elif kind != "skip":
            if found[0] == "|" and not lines[-1] and len(lines) > 1:
                # A line that begins so goes on with the one before, empty ones and comments aside.
                while len(lines) > 1 and not lines[-1]:
                    lines.pop()
            lines[-1].append((kind, found[0]))
    return [line for line in lines if line]


class _Terminals:
    """Reads what a terminal is made of."""

    def __init__(self, reader: _Reader, tokens: list[Token]) -> None:
        self._reader = reader
        self._tokens = tokens
        self._at = 0

    def alternatives(self) -> Node:
        """All of it."""
        found = self._alternatives()
        if self._at < len(self._tokens):
            raise Unknown("a sign")
        return found

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
            return self._counted(item, least, self._number() if self._take("..") else least)
        if self._take("{"):
            least = 0 if self._next() == ("sign", ",") else self._number()
            most: int | None = least
            if self._take(","):
                most = None if self._next() == ("sign", "}") else self._number()
            if not self._take("}"):
                raise Unknown("a count")
            return self._counted(item, least, most)
        return item

    def _counted(self, item: Node, least: int, most: int | None) -> Node:
        return Repeated(item, least, None if most == _ENDLESS else most)

    def _number(self) -> int:
        kind, text = self._next() or ("", "")
        if kind != "number":
            raise Unknown("a count")
        self._at += 1
        return int(text)

    def _atom(self) -> Node:
        if self._take("("):
            found = self._alternatives()
            if not self._take(")"):
                raise Unknown("a parenthesis")
            return found
        if self._take("["):
            found = self._alternatives()
            if not self._take("]"):
                raise Unknown("a bracket")
            return Repeated(found, 0, 1)
        kind, text = self._next() or ("", "")
        self._at += 1
        if kind in ("rule", "terminal"):
            return self._named(kind, text)
        return self._lifted(self._value(kind, text))

    def _named(self, kind: str, name: str) -> Node:
        if kind == "rule":
            raise Unknown("a rule in a terminal")
        return self._reader.terminal(name)

    def _lifted(self, pattern: Node) -> Node:
        return pattern

    def _value(self, kind: str, text: str) -> Node:
        if kind == "regex":
            end = text.rindex("/")
            return read_pattern(text[1:end], text[end + 1 :])
        if kind != "string":
            raise Unknown("a sign")
        said = _said(text.removesuffix("i"))
        if not self._take(".."):
            return literal(said, folded=text.endswith("i"))
        kind, text = self._next() or ("", "")
        self._at += 1
        last = _said(text) if kind == "string" else ""
        if len(said) != 1 or len(last) != 1:
            raise Unknown("a range")
        return span(ord(said), ord(last))


class _Rules(_Terminals):
    """Reads what a rule is made of: of rules and, as a lexer finds them, terminals."""

    def _named(self, kind: str, name: str) -> Node:
        return Rule(name) if kind == "rule" else Terminal(self._reader.terminal(name))

    def _lifted(self, pattern: Node) -> Node:
        return Terminal(pattern)


def _said(quoted: str) -> str:
    """What a string means; more than JSON, it may have characters by two digits."""
    try:
        return str(json.loads(_TWO_DIGITS.sub(lambda found: found[1] or rf"\u00{found[2]}", quoted)))
    except ValueError:
        raise Unknown("a string") from None
