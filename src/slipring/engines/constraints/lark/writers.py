"""Writes a grammar of texts as a grammar of JSON strings with such texts: for llguidance, and as GBNF.

llguidance's lexer matches as much as it can and never backtracks. Within a JSON string that goes wrong: after
a backslash it cannot know whether the terminal continues (``\\t``) or the next one begins (``\\n``). So each
terminal is written twice, as it is and with the backslash of the next escape appended; and a terminal after
such a backslash is written without its first backslash. Then the lexer splits a text as it would outside
JSON.

GBNF has no lexer, which would match each terminal as long as possible. So the written grammar accepts more
texts than the original; ``custom_inputs`` checks the result against the original. Of sets such as ``\\w``,
whose members beyond ASCII are unknown here, only the ASCII members are allowed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from slipring.engines.constraints.lark.character_sets import (
    LAST_CODE,
    CharacterSet,
    Ranges,
    invert_ranges,
    merge_ranges,
)
from slipring.engines.constraints.lark.lark_parser import (
    Either,
    LarkGrammar,
    Node,
    Repeated,
    Sequence,
    Terminal,
    Unsupported,
    beginnings,
    parse_lark,
    parse_regex,
)
from slipring.engines.constraints.lark.productions import MAX_TERMINAL_CHARS, Key, Productions, State
from slipring.protocol.tools.grammars_and_schemas import Grammar

ANY_STRING = Grammar("regex", r"[\s\S]*")
_WITH_HALFWAY = (State(True), State(True, True), State(False))
_WITHOUT_HALFWAY = (State(True), State(False))
_BACKSLASH = r"\\"
_SPECIAL = frozenset('"\\[]^-/')
"""Characters with a meaning within a class, for one GBNF parser or another."""


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
        """See ``productions.Writer``."""

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
