r"""Writes a grammar of texts as a grammar of JSON strings with such texts: for llguidance, and as GBNF.

A grammar of a tool describes the input itself. Models write the input as a JSON string, so engines need a
grammar of that string.

The parsed grammar is expanded into plain productions. A state is a position in a text. Each node becomes one
production per pair of states: the state before the text of the node, and the state after it. A writer for
each notation writes a terminal for a pair of states.

llguidance's lexer matches as much as it can and never backtracks. Within a JSON string that goes wrong: after
a backslash it cannot know whether the terminal continues (``\t``) or the next one begins (``\n``). So each
terminal is written twice, as it is and with the backslash of the next escape appended; and a terminal after
such a backslash is written without its first backslash. Then the lexer splits a text as it would outside
JSON.

GBNF has no lexer, which would match each terminal as long as possible. So the written grammar accepts more
texts than the original; ``custom_tool_inputs`` checks the result against the original. Of sets such as
``\w``, whose members beyond ASCII are unknown here, only the ASCII members are allowed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

from slipring.engines.constraints.lark_and_regex_parser import (
    EMPTY,
    LAST_CODE,
    CharacterSet,
    Either,
    LarkGrammar,
    Node,
    Ranges,
    Repeated,
    Rule,
    Sequence,
    Terminal,
    Unsupported,
    beginnings,
    invert_ranges,
    is_nullable,
    merge_ranges,
    parse_lark,
    parse_regex,
    without_empty,
)
from slipring.protocol.tools.grammars_and_schemas import Grammar

MAX_PRODUCTIONS = 30_000
"""Larger grammars raise ``Unsupported``: converting them takes too long."""
MAX_TERMINAL_CHARS = 100_000
"""Characters of all terminals that a writer may write; nested patterns are counted again at each level."""
ANY_STRING = Grammar("regex", r"[\s\S]*")
_BACKSLASH = r"\\"
_SPECIAL = frozenset('"\\[]^-/')
"""Characters with a meaning within a class, for one GBNF parser or another."""


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


_WITH_HALFWAY = (State(True), State(True, True), State(False))
_WITHOUT_HALFWAY = (State(True), State(False))


def llguidance_rules(definition: str, name: str) -> tuple[str, ...] | None:
    """Rules for the text between the quotes; None if the grammar cannot be converted.

    The first rule has the name ``name``, the names of the others begin with it.
    """
    terminals: dict[str, str] = {}

    def terminal(text: str) -> str:
        return terminals.setdefault(text, f"{name.upper()}_{len(terminals)}")

    try:
        productions = Productions(parse_lark(definition), _LlguidanceTerminals().write, _WITH_HALFWAY)
    except (Unsupported, RecursionError):
        return None
    rules = _rules(productions, name, "_", ":", terminal)
    return (*rules, *(f"{name}: /{text}/" for text, name in terminals.items())) if rules else None


def gbnf_rules(grammar: Grammar, name: str) -> tuple[str, ...] | None:
    """Rules for the text between the quotes; None if the grammar cannot be converted.

    The first rule has the name ``name``, the names of the others begin with it.
    """
    try:
        productions = Productions(_parse(grammar), _GbnfTerminals().write, _WITHOUT_HALFWAY)
    except (Unsupported, RecursionError):
        return None
    return _rules(productions, name, "-", " ::=", str) or None


def _parse(grammar: Grammar) -> LarkGrammar:
    if grammar.syntax == "lark":
        return parse_lark(grammar.definition)
    return LarkGrammar({"start": Terminal(parse_regex(grammar.definition))}, None)


def _rules(
    productions: Productions, name: str, dash: str, sign: str, terminal: Callable[[str], str]
) -> tuple[str, ...]:
    """A line for each production, and before them one for their start; empty if no text is accepted."""
    if not productions.starts:
        return ()
    names = {key: f"{name}{dash}{number}" for number, key in enumerate(productions.rules)}

    def option(symbols: tuple[Key | str, ...]) -> str:
        return " ".join(names[each] if isinstance(each, Key) else terminal(each) for each in symbols) or '""'

    starts = " | ".join(names[key] for key in productions.starts)
    rules = (f"{names[key]}{sign} {' | '.join(map(option, each))}" for key, each in productions.rules.items())
    return (f"{name}{sign} {starts}", *rules)


class _Terminals(ABC):
    """Writes the terminals of one grammar, up to ``MAX_TERMINAL_CHARS``."""

    nothing: str
    """The empty text."""
    between: str
    """What separates the parts of a sequence."""

    def __init__(self) -> None:
        self._left = MAX_TERMINAL_CHARS
        self._written: dict[Node, str | None] = {}

    @abstractmethod
    def write(self, pattern: Node, start: State, end: State) -> str | None:
        """See ``Writer``."""

    @abstractmethod
    def character(self, characters: CharacterSet) -> str | None: ...

    @abstractmethod
    def either(self, choices: list[str]) -> str: ...

    @abstractmethod
    def repeated(self, text: str, pattern: Repeated) -> str: ...

    def whole(self, pattern: Node) -> str | None:
        """A pattern as written within a JSON string; None if it matches no text there."""
        if pattern not in self._written:
            text = self._written[pattern] = self._write(pattern)
            self._left -= len(text or "")
            if self._left < 0:
                raise Unsupported("terminals too large")
        return self._written[pattern]

    def _write(self, pattern: Node) -> str | None:
        match pattern:
            case CharacterSet():
                return self.character(pattern)
            case Sequence(items):
                parts = [self.whole(item) for item in items]
                return None if None in parts else self.between.join(filter(None, parts)) or self.nothing
            case Either(options):
                choices = [text for option in options if (text := self.whole(option)) is not None]
                return self.either(choices) if choices else None
            case Repeated(item, least, most):
                text = self.whole(item)
                if text is None or most == 0:
                    return self.nothing if least == 0 else None
                return self.repeated(text, pattern)
        raise Unsupported("rule within a terminal")


class _LlguidanceTerminals(_Terminals):
    nothing = between = ""

    def write(self, pattern: Node, start: State, end: State) -> str | None:
        text = self._rest(pattern) if start.halfway else self.whole(pattern)
        return text if text is None or not end.halfway else f"(?:{text}){_BACKSLASH}"

    def _rest(self, pattern: Node) -> str | None:
        """A pattern whose first character is escaped, without the backslash; None if no text begins so."""
        choices = []
        for first, following in beginnings(pattern):
            if letters := first.escapes():
                rest = self.whole(following)
                choices += [_one_of(letters) + rest] if rest is not None else []
        return self.either(choices) if choices else None

    def character(self, characters: CharacterSet) -> str | None:
        plain, letters = characters.plain(), characters.escapes()
        if not letters:
            return plain
        escaped = _BACKSLASH + _one_of(letters)
        return escaped if plain is None else f"(?:{plain}|{escaped})"

    def either(self, choices: list[str]) -> str:
        return f"(?:{'|'.join(choices)})"

    def repeated(self, text: str, pattern: Repeated) -> str:
        return f"(?:{text}){{{pattern.least},{'' if pattern.most is None else pattern.most}}}"


def _one_of(letters: str) -> str:
    return f"[{''.join(_BACKSLASH if letter == chr(92) else letter for letter in letters)}]"


class _GbnfTerminals(_Terminals):
    nothing, between = '""', " "

    def write(self, pattern: Node, start: State, end: State) -> str | None:
        return self.whole(pattern)

    def character(self, characters: CharacterSet) -> str | None:
        ranges, letters = characters.unescaped(), characters.escapes()
        choices = [_class(ranges)] if ranges else []
        if letters:
            choices.append(rf'"\\" {_class(merge_ranges((ord(letter), ord(letter)) for letter in letters))}')
        return self.either(choices) if letters else next(iter(choices), None)

    def either(self, choices: list[str]) -> str:
        return f"({' | '.join(choices)})"

    def repeated(self, text: str, pattern: Repeated) -> str:
        # Some parsers read two counts in a row as another operator.
        lead = '"" ' if isinstance(_unwrapped(pattern.item), Repeated) else ""
        return f"({lead}{text}){_times(pattern.least, pattern.most)}"


def _unwrapped(pattern: Node) -> Node:
    """A pattern without sequences of one item around it."""
    while isinstance(pattern, Sequence) and len(pattern.items) == 1:
        pattern = pattern.items[0]
    return pattern


def _times(least: int, most: int | None) -> str:
    if most is None and least < 2:
        return "*" if least == 0 else "+"
    return "?" if (least, most) == (0, 1) else f"{{{least},{'' if most is None else most}}}"


def _class(ranges: Ranges) -> str:
    """A character class. Ranges up to the last code are written negated: not every parser knows that code."""
    return f"[^{_ranges(invert_ranges(ranges))}]" if ranges[-1][1] == LAST_CODE else f"[{_ranges(ranges)}]"


def _ranges(ranges: Ranges) -> str:
    """Hexadecimal codes come last: some parsers read every digit that follows as part of the code."""
    items = [_range(*each) for each in ranges]
    return "".join(sorted(items, key=lambda item: item.startswith("\\")))


def _range(first: int, last: int) -> str:
    ends = [chr(code) for code in dict.fromkeys((first, last))]
    is_plain = all(end.isprintable() and end not in _SPECIAL for end in ends)
    return "-".join(ends if is_plain else [rf"\x{ord(end):02X}" if end.isascii() else end for end in ends])
