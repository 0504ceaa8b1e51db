"""Parses regular expressions of llguidance into syntax trees.

The syntax is that of Rust's ``regex``. Set operations, scripts, anchors and flags other than ``i`` and ``s``
raise ``Unsupported``. The expression must be valid: it has been checked before.
"""

import re
from typing import Final

from slipring.engines.constraints.lark.character_sets import (
    ANY,
    NOT_A_NEWLINE,
    CharacterSet,
    class_escape,
    code_range,
    complement,
    single,
    unicode_category,
    union,
)
from slipring.engines.constraints.lark.syntax_tree import Either, Node, Repeated, Sequence, Unsupported

_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = re.compile(r"\\(?:[xuU]\{(H+)\}|x(HH)|u(HHHH)|U(H{8}))".replace("H", "[0-9a-fA-F]"))
_CATEGORY: Final = re.compile(r"\\[pP](?:\{(\^?)(\w+)\}|(\w))")
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_NAMED: Final = re.compile(r"\(\?P?<\w+>")
_SUPPORTED_FLAGS: Final = frozenset("imsu")
"""``m`` has no effect without anchors, and ``u`` is the default."""


def parse_regex(expression: str, flags: str = "") -> Node:
    """Parse an expression. Raises ``Unsupported``."""
    parser = _Parser(expression)
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


class _Parser:
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
