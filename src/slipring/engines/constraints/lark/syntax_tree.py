"""The nodes of parsed grammars and regular expressions, and operations on them."""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from slipring.engines.constraints.lark.character_sets import CharacterSet


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
_MAX_BEGINNINGS = 200


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
