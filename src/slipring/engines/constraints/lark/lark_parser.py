"""Parses grammars in Lark's notation, as llguidance reads it, into syntax trees.

References to terminals are replaced by their patterns. Attributes and parameters of rules, ``~`` and ``&``
between terminals, and tokens by name raise ``Unsupported``. The grammar must be valid: it has been checked
before.
"""

import json
import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from slipring.engines.constraints.lark.character_sets import code_range
from slipring.engines.constraints.lark.regex_parser import literal, parse_regex
from slipring.engines.constraints.lark.syntax_tree import (
    Either,
    Node,
    Repeated,
    Rule,
    Sequence,
    Terminal,
    Unsupported,
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
"""Terminals of Lark's ``common`` library that llguidance can import."""
_HEX_ESCAPE: Final = re.compile(r"(\\[^x])|\\x(..)")
_UNBOUNDED: Final = 2**31 - 1


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


Token = tuple[str, str]
"""Kind and text."""


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
