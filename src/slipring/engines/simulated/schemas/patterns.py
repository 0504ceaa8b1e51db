"""Strings that match a regular expression, and the check that one does.

Owns all that the simulated engine knows of regular expressions. Matching walks sets of positions
over the parsed tree instead of calling `re`: the patterns come from clients, and `re` backtracks
without bound on a hostile one. What both halves do is metered by the `spend` of the caller.
"""

import importlib
import re
import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

Spend = Callable[[int], None]
Nodes = Sequence[tuple[Any, Any]]

_LONGEST = 5_000  # characters of a pattern
_VARIANTS = 48  # different strings offered for one pattern
_TESTS_PER_STEP = 32  # tests of a character which take about as long as any other step

_PLAIN = string.ascii_letters + "1234567890" + "-_./:@ !#$%&*+=?,;~'\"()[]"
# Every class of character within any four in a row: what password-like lookaheads ask for.
_MIXED = "aA1!bB2@cC3#dD4$eE5%fF6&gG7*" + _PLAIN


class PatternError(ValueError):
    """The pattern is not a regular expression, or uses what is not supported here."""


def samples(pattern: str, shortest: int, spend: Spend) -> Iterator[str]:
    """Strings likely to match the pattern; the caller checks, as lookarounds may object."""
    nodes, _ = _parse(pattern)
    for variant in range(_VARIANTS):
        text = _Sampler(variant, 0, spend).text(nodes)
        if len(text) < shortest:
            text = _Sampler(variant, shortest - len(text), spend).text(nodes)
        yield text
        if len(text) < shortest:
            # Where the pattern is not anchored, padding outside of the match is as good.
            yield text.ljust(shortest, "a")
            yield text.rjust(shortest, "a")


def matches(pattern: str, text: str, spend: Spend) -> bool:
    """Whether the pattern is found anywhere in the text, in time polynomial in its length."""
    nodes, fold_case = _parse(pattern)
    return bool(_Matcher(text, fold_case, spend).ends(nodes, set(range(len(text) + 1))))


@lru_cache(maxsize=256)
def _parse(pattern: str) -> tuple[Nodes, bool]:
    """The parsed nodes of a pattern, and whether it ignores case throughout."""
    if len(pattern) > _LONGEST:
        raise PatternError(f"a pattern of {len(pattern)} characters is too long to simulate")
    # ECMA 262 spells these two otherwise than Python: `(?<name>…)`, and `[\w-.]`.
    source = re.sub(r"(?<!\\)\(\?<(?![=!])", "(?P<", pattern)
    source = re.sub(r"(\\[dswDSW])-(?!\])", r"\1\\-", source)
    try:
        parser = importlib.import_module("re._parser")  # private: hence the guard
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's doubts about its own future syntax
            tree = parser.parse(source)
    except (re.error, ImportError, AttributeError, OverflowError, RecursionError) as error:
        raise PatternError(f"pattern {pattern[:80]!r} cannot be read: {error}") from error
    return tree, bool(tree.state.flags & re.IGNORECASE)


def _is_word(char: str) -> bool:
    """Whether it is of \\w; an empty string, the outside of a text, is not."""
    return char.isascii() and (char.isalnum() or char == "_")


def _in_category(category: object, char: str) -> bool:
    """Membership of \\d, \\s and \\w and their opposites: ASCII, as ECMA 262 has them."""
    kind = str(category).removeprefix("CATEGORY_")
    name = kind.removeprefix("NOT_")
    tests = {"DIGIT": char in string.digits, "SPACE": char.isspace(), "WORD": _is_word(char)}
    return tests[name] != (kind != name)


def _in_class(items: Nodes, char: str) -> bool:
    negated = str(items[0][0]) == "NEGATE"
    return any(_CHARS[str(op)](arg, char) for op, arg in items[negated:]) != negated


_CHARS: dict[str, Callable[[Any, str], bool]] = {
    "LITERAL": lambda code, char: ord(char) == code,
    "NOT_LITERAL": lambda code, char: ord(char) != code,
    "ANY": lambda _, char: char not in "\r\n",
    "RANGE": lambda span, char: bool(span[0] <= ord(char) <= span[1]),
    "CATEGORY": _in_category,
    "IN": _in_class,
}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT"}


def _weight(arg: Any) -> int:
    """How many tests it takes to tell whether one character fits."""
    return len(arg) if isinstance(arg, list) else 1


def _unsupported(op: object) -> PatternError:
    return PatternError(f"pattern uses {str(op).lower()}, which is not supported")


class _Matcher:
    """Where a match of parsed nodes may end in one text."""

    def __init__(self, text: str, fold_case: bool, spend: Spend) -> None:
        self._text = text
        self._fold_case = fold_case
        self._spend = spend

    def ends(self, nodes: Nodes, starts: set[int]) -> set[int]:
        """Every position at which a match of the nodes that began at one of `starts` can end."""
        for op, arg in nodes:
            if not starts:
                break
            self._spend(1 + len(starts) * _weight(arg) // _TESTS_PER_STEP)
            starts = self._after(str(op), arg, starts)
        return starts

    def _after(self, op: str, arg: Any, starts: set[int]) -> set[int]:
        if op in _CHARS:
            return {at + 1 for at in starts if at < len(self._text) and self._admits(op, arg, at)}
        if op in _REPEATS:
            return self._after_repeat(starts, *arg)
        if op == "SUBPATTERN":
            return self.ends(arg[3], starts)
        if op == "BRANCH":
            return set().union(*(self.ends(branch, starts) for branch in arg[1]))
        if op == "AT":
            return {at for at in starts if self._stands(str(arg), at)}
        if op in ("ASSERT", "ASSERT_NOT"):
            return {at for at in starts if self._looks(at, *arg) == (op == "ASSERT")}
        raise _unsupported(op)

    def _looks(self, at: int, direction: int, nodes: Nodes) -> bool:
        if direction > 0:
            return bool(self.ends(nodes, {at}))
        return at in self.ends(nodes, set(range(at + 1)))

    def _admits(self, op: str, arg: Any, at: int) -> bool:
        char = self._text[at]
        return _CHARS[op](arg, char) or (self._fold_case and _CHARS[op](arg, char.swapcase()))

    def _after_repeat(self, starts: set[int], least: int, most: int, nodes: Nodes) -> set[int]:
        found = set(starts) if least == 0 else set()
        count = 0
        while starts and count < int(most):
            count += 1
            following = self.ends(nodes, starts)
            settled = following == starts or (count > least and following <= found)
            # A settled set stays the same however often the repeat goes on.
            if count >= least or settled:
                found |= following
            if settled:
                break
            starts = following
        return found

    def _stands(self, anchor: str, at: int) -> bool:
        if anchor.startswith("AT_BEGINNING"):
            return at == 0
        if anchor.startswith("AT_END"):
            return at == len(self._text)
        at_edge = _is_word(self._text[max(at - 1, 0) : at]) != _is_word(self._text[at : at + 1])
        return at_edge == (anchor == "AT_BOUNDARY")


class _Sampler:
    """Writes one string for parsed nodes: the shortest, grown by `spare` characters if it can."""

    def __init__(self, variant: int, spare: int, spend: Spend) -> None:
        self._variant = variant
        self._spare = spare
        self._spend = spend
        self._written = 0

    def text(self, nodes: Nodes) -> str:
        self._spend(1)
        return "".join(self._piece(str(op), arg) for op, arg in nodes)

    def _piece(self, op: str, arg: Any) -> str:
        if op in _CHARS:
            return self._char(op, arg)
        if op in _REPEATS:
            return self._repeat(*arg)
        if op == "SUBPATTERN":
            return self.text(arg[3])
        if op == "BRANCH":
            return self.text(arg[1][self._variant % len(arg[1])])
        if op == "ASSERT" and self._variant % 3 == 2:
            return self.text(arg[1])  # what it looks ahead for may be all that is missing
        if op in ("AT", "ASSERT", "ASSERT_NOT"):
            return ""
        raise _unsupported(op)

    def _char(self, op: str, arg: Any) -> str:
        self._written += 1
        if op == "LITERAL":
            return chr(arg)
        self._spend(_weight(arg))
        mixed = self._variant % 2 == 1
        admitted = [char for char in (_MIXED if mixed else _PLAIN) if _CHARS[op](arg, char)]
        if admitted:
            index = self._variant // 2 + (self._written if mixed else 0)
            return admitted[index % len(admitted)]
        return self._rare_char(arg)

    def _rare_char(self, items: Nodes) -> str:
        """A character of a class that has none of the usual ones, as one of another script."""
        starts = [arg[0] if str(op) == "RANGE" else arg for op, arg in items]
        codes = [code + self._variant for code in starts if isinstance(code, int)]
        codes += [code for code in starts if isinstance(code, int)]
        fitting = [chr(code) for code in codes if code <= 0x10FFFF and _in_class(items, chr(code))]
        return next(iter(fitting), "\t")

    def _repeat(self, least: int, most: int, nodes: Nodes) -> str:
        pieces = [self.text(nodes) for _ in range(least)]
        spare, self._spare = self._spare, 0  # so that growing a repeat does not grow those inside
        while spare > 0 and len(pieces) < int(most):
            piece = self.text(nodes)
            if not piece:
                break
            pieces.append(piece)
            spare -= len(piece)
        self._spare = spare
        return "".join(pieces)
