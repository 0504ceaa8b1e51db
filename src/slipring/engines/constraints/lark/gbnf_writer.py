"""Writes a grammar of texts as a GBNF grammar of JSON strings with such texts.

GBNF has no lexer, which would match each terminal as long as possible. So the written grammar accepts more
texts than the original; ``custom_inputs`` checks the result against the original. Of sets such as ``\\w``,
whose members beyond ASCII are unknown here, only the ASCII members are allowed.
"""

from slipring.engines.constraints.lark.character_sets import (
    LAST_CODE,
    CharacterSet,
    Ranges,
    invert_ranges,
    merge_ranges,
)
from slipring.engines.constraints.lark.lark_parser import LarkGrammar, parse_lark
from slipring.engines.constraints.lark.productions import MAX_TERMINAL_CHARS, Key, Productions, State
from slipring.engines.constraints.lark.regex_parser import parse_regex
from slipring.engines.constraints.lark.syntax_tree import (
    Either,
    Node,
    Repeated,
    Sequence,
    Terminal,
    Unsupported,
)
from slipring.protocol.definitions import Grammar

_STATES = (State(True), State(False))
_SPECIAL = frozenset('"\\[]^-/')
"""Characters with a meaning within a class, for one GBNF parser or another."""
ANY_STRING = Grammar("regex", r"[\s\S]*")


def gbnf_rules(grammar: Grammar, name: str) -> tuple[str, ...] | None:
    """Rules for the text between the quotes; None if the grammar cannot be converted.

    The first rule has the name ``name``, the names of the others begin with it.
    """
    try:
        productions = Productions(_parse(grammar), _TerminalWriter().write, _STATES)
    except (Unsupported, RecursionError):
        return None
    if not productions.starts:
        return None
    names = {key: f"{name}-{number}" for number, key in enumerate(productions.rules)}

    def option(symbols: tuple[Key | str, ...]) -> str:
        return " ".join(names[each] if isinstance(each, Key) else each for each in symbols) or '""'

    starts = " | ".join(names[key] for key in productions.starts)
    rules = [
        f"{names[key]} ::= {' | '.join(map(option, options))}" for key, options in productions.rules.items()
    ]
    return (f"{name} ::= {starts}", *rules)


def _parse(grammar: Grammar) -> LarkGrammar:
    if grammar.syntax == "lark":
        return parse_lark(grammar.definition)
    return LarkGrammar({"start": Terminal(parse_regex(grammar.definition))}, None)


class _TerminalWriter:
    """Writes the terminals of one grammar, up to ``MAX_TERMINAL_CHARS``."""

    def __init__(self) -> None:
        self._left = MAX_TERMINAL_CHARS
        self._written: dict[Node, str | None] = {}

    def write(self, pattern: Node, start: State, end: State) -> str | None:
        """See ``productions.Writer``. The result does not depend on the states."""
        if pattern not in self._written:
            text = self._written[pattern] = self._write(pattern, start, end)
            self._left -= len(text or "")
            if self._left < 0:
                raise Unsupported("terminals too large")
        return self._written[pattern]

    def _write(self, pattern: Node, start: State, end: State) -> str | None:
        match pattern:
            case CharacterSet():
                return _character(pattern)
            case Sequence(items):
                parts = [self.write(item, start, end) for item in items]
                return None if None in parts else " ".join(filter(None, parts)) or '""'
            case Either(options):
                choices = [text for option in options if (text := self.write(option, start, end)) is not None]
                return f"({' | '.join(choices)})" if choices else None
            case Repeated(item, least, most):
                text = self.write(item, start, end)
                if text is None or most == 0:
                    return '""' if least == 0 else None
                # Some parsers read two counts in a row as another operator.
                lead = '"" ' if isinstance(_unwrapped(item), Repeated) else ""
                return f"({lead}{text}){_times(least, most)}"
        raise Unsupported("rule within a terminal")


def _unwrapped(pattern: Node) -> Node:
    """A pattern without sequences of one item around it."""
    while isinstance(pattern, Sequence) and len(pattern.items) == 1:
        pattern = pattern.items[0]
    return pattern


def _times(least: int, most: int | None) -> str:
    if most is None and least < 2:
        return "*" if least == 0 else "+"
    return "?" if (least, most) == (0, 1) else f"{{{least},{'' if most is None else most}}}"


def _character(characters: CharacterSet) -> str | None:
    ranges, letters = characters.unescaped(), characters.escapes()
    choices = [_class(ranges)] if ranges else []
    if letters:
        choices.append(rf'"\\" {_class(merge_ranges((ord(letter), ord(letter)) for letter in letters))}')
    if len(choices) < 2:
        return f"({choices[0]})" if letters else next(iter(choices), None)
    return f"({' | '.join(choices)})"


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
