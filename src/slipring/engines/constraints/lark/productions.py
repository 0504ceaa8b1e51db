"""A grammar as plain productions, for lexers that cannot look ahead and for those that are none.

A text is read in states, and each rule becomes one per pair of them: from where it is read, to where it
leaves. What a notation makes of a terminal from one state to another is for its writer to say.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from slipring.engines.constraints.lark.lark_parser import Definition
from slipring.engines.constraints.lark.syntax_tree import (
    NOTHING,
    Either,
    Node,
    Repeated,
    Rule,
    Sequence,
    Terminal,
    Unknown,
    is_nullable,
    not_empty,
)

MOST = 30_000
"""Productions. More would keep everybody waiting."""

LONGEST = 100_000
"""Characters of terminals that are written in all, parts of them counted by themselves."""


class State(NamedTuple):
    """Where in a text one is."""

    begun: bool
    """What is ignored may stand between terminals, but not before the first."""
    halfway: bool = False
    """The backslash of an escape has been read, and not what follows it."""


class Key(NamedTuple):
    """What is read from one state to another."""

    node: Node
    start: State
    end: State


Symbol = Key | str
"""A string is a terminal in the writer's notation."""
Writer = Callable[[Node, State, State], str | None]
"""Writes a terminal, which is never empty; None: no text of it leads from one state to the other."""


class Productions:
    """What a definition becomes."""

    def __init__(self, definition: Definition, write: Writer, states: tuple[State, ...]) -> None:
        self._definition = definition
        self._write = write
        self._states = states
        start = Rule("start")
        first = State(definition.ignored is None)
        self.starts = [Key(start, first, end) for end in dict.fromkeys((first, State(True)))]
        all_rules = _reachable(self.starts, lambda key: list(self._expanded(*key)))
        useful = _productive(all_rules)
        self.starts = [key for key in self.starts if key in useful]
        self.rules = _reachable(self.starts, useful.__getitem__)

    def _expanded(self, node: Node, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        match node:
            case Rule(name):
                if name not in self._definition.rules:
                    raise Unknown("a name")
                yield (Key(self._definition.rules[name], start, end),)
            case Either(options):
                yield from ((Key(option, start, end),) for option in options)
            case Sequence(()):
                if start == end:
                    yield ()
            case Sequence((only,)):
                yield (Key(only, start, end),)
            case Sequence(items):
                half = len(items) // 2  # so that long ones are not copied over and over
                yield from self._both(Sequence(items[:half]), Sequence(items[half:]), start, end)
            case Repeated(item, least, most):
                yield from self._repeated(item, least, most, start, end)
            case Terminal():
                yield from self._terminal(node, start, end)

    def _both(self, first: Node, second: Node, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        yield from ((Key(first, start, middle), Key(second, middle, end)) for middle in self._states)

    def _repeated(
        self, item: Node, least: int, most: int | None, start: State, end: State
    ) -> Iterator[tuple[Symbol, ...]]:
        if most is None and least == 0:
            yield from self._expanded(NOTHING, start, end)
            yield from self._both(Repeated(item, 0, None), item, start, end)
        elif least and most != least:
            rest = Repeated(item, 0, most - least if most is not None else None)
            yield from self._both(Repeated(item, least, least), rest, start, end)
        elif most == 0:
            yield from self._expanded(NOTHING, start, end)
        elif most == 1:
            yield (Key(item, start, end),)
            if least == 0:
                yield from self._expanded(NOTHING, start, end)
        else:
            # By halves, so that a thousand times are ten rules.
            assert most is not None
            parts = [Repeated(item, each if least else 0, each) for each in (most // 2, most - most // 2)]
            yield from self._both(parts[0], parts[1], start, end)

    def _terminal(self, terminal: Terminal, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        pattern, ignored = terminal.pattern, self._definition.ignored
        if is_nullable(pattern):
            yield from self._expanded(NOTHING, start, end)
        if not start.begun or ignored is None or terminal.is_ignored:
            yield from self._written(pattern, start, end)
            return
        for middle in self._states:
            between = Key(Repeated(ignored, 0, None), start, middle)
            yield from ((between, *each) for each in self._written(pattern, middle, end))

    def _written(self, pattern: Node, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        if end.begun and (text := self._write(not_empty(pattern), start, end)) is not None:
            yield (text,)


Rules = dict[Key, list[tuple[Symbol, ...]]]


def _reachable(starts: list[Key], expand: Callable[[Key], list[tuple[Symbol, ...]]]) -> Rules:
    found: Rules = {}
    waiting, count = list(reversed(starts)), 0
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found[key] = expand(key)
        count += len(found[key]) + 1
        if count > MOST:
            raise Unknown("its size")
        waiting += [symbol for option in found[key] for symbol in option if isinstance(symbol, Key)]
    return found


def _productive(rules: Rules) -> Rules:
    """The rules without what no text ever comes of: it would lead astray."""
    users: dict[Key, set[Key]] = {}
    for key, options in rules.items():
        for option in options:
            for symbol in option:
                if isinstance(symbol, Key):
                    users.setdefault(symbol, set()).add(key)
    good: set[Key] = set()
    waiting = list(rules)
    while waiting:
        key = waiting.pop()
        if key not in good and any(_is_good(option, good) for option in rules[key]):
            good.add(key)
            waiting += users.get(key, ())
    return {key: [option for option in rules[key] if _is_good(option, good)] for key in good}


def _is_good(option: tuple[Symbol, ...], good: set[Key]) -> bool:
    return all(isinstance(symbol, str) or symbol in good for symbol in option)
