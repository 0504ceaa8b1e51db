"""Expands a parsed grammar into plain productions, from which writers generate other notations.

A state is a position in a text. Each node becomes one production per pair of states: the state before the
text of the node, and the state after it. The writer provides a function that writes a
terminal for a pair of states.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from slipring.engines.constraints.lark.lark_parser import (
    EMPTY,
    Either,
    LarkGrammar,
    Node,
    Repeated,
    Rule,
    Sequence,
    Terminal,
    Unsupported,
    is_nullable,
    without_empty,
)

MAX_PRODUCTIONS = 30_000
"""Larger grammars raise ``Unsupported``: converting them takes too long."""

MAX_TERMINAL_CHARS = 100_000
"""Characters of all terminals that a writer may write; nested patterns are counted again at each level."""


class State(NamedTuple):
    """A position between two parts of a text."""

    begun: bool
    """Whether a terminal has been read. Ignored text may follow terminals, but not precede the first."""
    halfway: bool = False
    """Whether the backslash of an escape has been read, but not the letter after it."""


class Key(NamedTuple):
    """The texts of a node that lead from one state to another."""

    node: Node
    start: State
    end: State


Symbol = Key | str
"""A production, or a terminal in the writer's notation."""
Writer = Callable[[Node, State, State], str | None]
"""Writes a pattern that does not match the empty text; returns None if no text of it leads from the first
state to the second."""


class Productions:
    """The productions of a grammar: ``rules`` has the alternatives of each key.

    ``starts`` are the keys of the start rule. The constructor raises ``Unsupported``.
    """

    def __init__(self, grammar: LarkGrammar, write: Writer, states: tuple[State, ...]) -> None:
        self._grammar = grammar
        self._write = write
        self._states = states
        start = Rule("start")
        first = State(grammar.ignored is None)
        self.starts = [Key(start, first, end) for end in dict.fromkeys((first, State(True)))]
        all_rules = _reachable(self.starts, lambda key: list(self._expanded(*key)))
        useful = _productive(all_rules)
        self.starts = [key for key in self.starts if key in useful]
        self.rules = _reachable(self.starts, useful.__getitem__)

    def _expanded(self, node: Node, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        match node:
            case Rule(name):
                if name not in self._grammar.rules:
                    raise Unsupported("undefined name")
                yield (Key(self._grammar.rules[name], start, end),)
            case Either(options):
                yield from ((Key(option, start, end),) for option in options)
            case Sequence(()):
                if start == end:
                    yield ()
            case Sequence((only,)):
                yield (Key(only, start, end),)
            case Sequence(items):
                half = len(items) // 2  # one item at a time would copy long sequences quadratically
                yield from self._pair(Sequence(items[:half]), Sequence(items[half:]), start, end)
            case Repeated(item, least, most):
                yield from self._repeated(item, least, most, start, end)
            case Terminal():
                yield from self._terminal(node, start, end)

    def _pair(self, first: Node, second: Node, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        yield from ((Key(first, start, middle), Key(second, middle, end)) for middle in self._states)

    def _repeated(
        self, item: Node, least: int, most: int | None, start: State, end: State
    ) -> Iterator[tuple[Symbol, ...]]:
        if most is None and least == 0:
            yield from self._expanded(EMPTY, start, end)
            yield from self._pair(Repeated(item, 0, None), item, start, end)
        elif least and most != least:
            rest = Repeated(item, 0, most - least if most is not None else None)
            yield from self._pair(Repeated(item, least, least), rest, start, end)
        elif most == 0:
            yield from self._expanded(EMPTY, start, end)
        elif most == 1:
            yield (Key(item, start, end),)
            if least == 0:
                yield from self._expanded(EMPTY, start, end)
        else:
            # By halves: a count of 1,000 becomes about ten productions.
            assert most is not None
            parts = [Repeated(item, each if least else 0, each) for each in (most // 2, most - most // 2)]
            yield from self._pair(parts[0], parts[1], start, end)

    def _terminal(self, terminal: Terminal, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        pattern, ignored = terminal.pattern, self._grammar.ignored
        if is_nullable(pattern):
            yield from self._expanded(EMPTY, start, end)
        if not start.begun or ignored is None or terminal.is_ignored:
            yield from self._written(pattern, start, end)
            return
        for middle in self._states:
            between = Key(Repeated(ignored, 0, None), start, middle)
            yield from ((between, *each) for each in self._written(pattern, middle, end))

    def _written(self, pattern: Node, start: State, end: State) -> Iterator[tuple[Symbol, ...]]:
        if end.begun and (text := self._write(without_empty(pattern), start, end)) is not None:
            yield (text,)


Rules = dict[Key, list[tuple[Symbol, ...]]]


def _reachable(starts: list[Key], expand: Callable[[Key], list[tuple[Symbol, ...]]]) -> Rules:
    """Expand the start keys, and every key that they lead to."""
    rules: Rules = {}
    waiting, count = list(reversed(starts)), 0
    while waiting:
        key = waiting.pop()
        if key in rules:
            continue
        rules[key] = expand(key)
        count += len(rules[key]) + 1
        if count > MAX_PRODUCTIONS:
            raise Unsupported("too many productions")
        waiting += [symbol for option in rules[key] for symbol in option if isinstance(symbol, Key)]
    return rules


def _productive(rules: Rules) -> Rules:
    """The rules without alternatives that match no text: a model that followed one could not finish."""
    users: dict[Key, set[Key]] = {}
    for key, options in rules.items():
        for option in options:
            for symbol in option:
                if isinstance(symbol, Key):
                    users.setdefault(symbol, set()).add(key)
    productive: set[Key] = set()
    waiting = list(rules)
    while waiting:
        key = waiting.pop()
        if key not in productive and any(_is_useful(option, productive) for option in rules[key]):
            productive.add(key)
            waiting += users.get(key, ())
    return {key: [option for option in rules[key] if _is_useful(option, productive)] for key in productive}


def _is_useful(option: tuple[Symbol, ...], productive: set[Key]) -> bool:
    return all(isinstance(symbol, str) or symbol in productive for symbol in option)
