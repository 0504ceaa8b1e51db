"""What grammars are made of, terminals and rules alike, and what texts begin with."""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from slipring.engines.constraints.lark.character_sets import Characters


class Unknown(Exception):
    """A grammar uses what cannot be converted."""


class Sequence(Struct, frozen=True, cache_hash=True):
    items: tuple["Node", ...]


class Either(Struct, frozen=True, cache_hash=True):
    options: tuple["Node", ...]


class Repeated(Struct, frozen=True, cache_hash=True):
    item: "Node"
    least: int
    most: int | None


class Terminal(Struct, frozen=True, cache_hash=True):
    """What a lexer takes at once, and as much of it as it can."""

    pattern: "Node"
    is_ignored: bool = False
    """It stands between others, and says nothing."""


class Rule(Struct, frozen=True, cache_hash=True):
    name: str


Node = Characters | Sequence | Either | Repeated | Terminal | Rule

NOTHING = Sequence(())
_MOST_BEGINNINGS = 200


def is_nullable(pattern: Node) -> bool:
    """Whether a pattern fits the empty text."""
    match pattern:
        case Sequence(items):
            return all(map(is_nullable, items))
        case Either(options):
            return any(map(is_nullable, options))
        case Repeated(item, least, _):
            return least == 0 or is_nullable(item)
    return False


def beginnings(pattern: Node) -> Iterator[tuple[Characters, Node]]:
    """How its texts begin: the first character, and what follows it."""
    match pattern:
        case Characters():
            yield pattern, NOTHING
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


def not_empty(pattern: Node) -> Node:
    """The same without the empty text."""
    if not is_nullable(pattern):
        return pattern
    found = tuple(islice(beginnings(pattern), _MOST_BEGINNINGS + 1))
    if len(found) > _MOST_BEGINNINGS:
        raise Unknown("how many ways a terminal may begin")
    return Either(tuple(map(Sequence, found)))
