"""Regular expressions, as llguidance reads them, as trees.

The syntax is that of Rust's ``regex``. What is not understood here (set operations, scripts, flags other than
``i`` and ``s``) raises ``Unknown``; what is no expression at all has been refused before.
"""

import re
from typing import Final

from slipring.engines.constraints.lark.character_sets import (
    ANY,
    NOT_A_NEWLINE,
    Characters,
    category,
    complement,
    named,
    one,
    span,
    union,
)
from slipring.engines.constraints.lark.syntax_tree import Either, Node, Repeated, Sequence, Unknown

_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = re.compile(r"\\(?:[xuU]\{(H+)\}|x(HH)|u(HHHH)|U(H{8}))".replace("H", "[0-9a-fA-F]"))
_CATEGORY: Final = re.compile(r"\\[pP](?:\{(\^?)(\w+)\}|(\w))")
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_NAMED: Final = re.compile(r"\(\?P?<\w+>")
_TAKEN: Final = frozenset("imsu")
"""Flags that are understood; without anchors ``m`` means nothing, and ``u`` is the rule."""


def read_pattern(expression: str, flags: str = "") -> Node:
    """The tree of an expression."""
    reader = _Reader(expression)
    tree = reader.alternatives(_with(frozenset(), flags, ""))
    if reader.at < len(expression):
        raise Unknown("a parenthesis")
    return tree


def literal(text: str, *, folded: bool = False) -> Node:
    """A text that means itself."""
    parts = [one(character) for character in text]
    return Sequence(tuple(part.fold() if folded else part for part in parts))


def _with(flags: frozenset[str], added: str, removed: str) -> frozenset[str]:
    if not _TAKEN.issuperset(added) or not {"i", "m", "s"}.issuperset(removed):
        raise Unknown("a flag")
    return (flags | set(added)) - set(removed)


class _Reader:
    def __init__(self, expression: str) -> None:
        self._text = expression
        self.at = 0

    def alternatives(self, flags: frozenset[str]) -> Node:
        """Up to the end, or the parenthesis that closes."""
        options: list[Node] = []
        items: list[Node] = []
        while self.at < len(self._text) and self._text[self.at] != ")":
            if self._take("|"):
                options.append(Sequence(tuple(items)))
                items = []
            elif (found := _FLAGS.match(self._text, self.at)) and found[3] == ")":
                self.at = found.end()
                flags = _with(flags, found[1], found[2] or "")
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
            self._take("?")  # how much is taken first makes no other texts
            item = Repeated(item, least, most)

    def _atom(self, flags: frozenset[str]) -> Node:
        if self._text[self.at] == "(":
            return self._group(flags)
        if self._text[self.at] in "^$":
            raise Unknown("an anchor")
        if self._take("."):
            return ANY if "s" in flags else NOT_A_NEWLINE
        if self._take("["):
            return self._class("i" in flags)
        found = self._character()
        return found.fold() if "i" in flags else found

    def _group(self, flags: frozenset[str]) -> Node:
        if found := _FLAGS.match(self._text, self.at):
            flags = _with(flags, found[1], found[2] or "")
            self.at = found.end()
        elif found := _NAMED.match(self._text, self.at):
            self.at = found.end()
        else:
            self.at += 1
            if self._text.startswith("?", self.at):
                raise Unknown("a group")
        tree = self.alternatives(flags)
        if not self._take(")"):
            raise Unknown("a parenthesis")
        return tree

    def _character(self) -> Characters:
        """One that stands alone or within a class."""
        character = self._text[self.at]
        if character != "\\":
            self.at += 1
            return one(character)
        if found := _HEX.match(self._text, self.at):
            self.at = found.end()
            return one(chr(int(next(filter(None, found.groups())), 16)))
        if found := _CATEGORY.match(self._text, self.at):
            self.at = found.end()
            known = category(found[2] or found[3])
            if known is None:
                raise Unknown("a property of characters")
            return complement(known) if (found[0][1] == "P") != bool(found[1]) else known
        letter = self._text[self.at + 1 : self.at + 2]
        self.at += 2
        if letter in _CONTROL and letter:
            return one(_CONTROL[letter])
        if (known := named(letter)) is not None:
            return known
        if not letter or letter.isalnum() or letter in "<>":
            raise Unknown("an escape")
        return one(letter)

    def _class(self, folded: bool) -> Characters:
        """A class, from behind its bracket on."""
        is_negated = self._take("^")
        parts: list[Characters] = []
        while self._text.startswith("-", self.at):
            self.at += 1
            parts.append(one("-"))
        if not parts and self._take("]"):
            parts.append(one("]"))
        while not self._take("]"):
            if self.at >= len(self._text) or self._text[self.at] == "[":
                raise Unknown("a class within a class")
            if self._text[self.at : self.at + 2] in ("&&", "--", "~~"):
                raise Unknown("an operation on classes")
            parts.append(self._member())
        found = union(parts).fold() if folded else union(parts)
        return complement(found) if is_negated else found

    def _member(self) -> Characters:
        first = self._character()
        following = self._text[self.at + 1 : self.at + 2]
        if not self._text.startswith("-", self.at) or following in ("]", "-", ""):
            return first
        self.at += 1
        last = self._character()
        return span(_code(first), _code(last))


def _code(characters: Characters) -> int:
    if len(characters.sure) != 1 or characters.sure[0][0] != characters.sure[0][1]:
        raise Unknown("a range of sets")
    return characters.sure[0][0]
