"""Grammars of texts as grammars of JSON strings that hold such texts, in GBNF: for servers that take that.

It knows no terminals: where two meet, a text may be taken apart in another way than a lexer would, which
takes as much as it can. So more texts fit than do in truth, and what comes is still held against the grammar.
Of sets that are known in ASCII only (``\\w``), no more than that is allowed.
"""

from slipring.engines.constraints.lark.character_sets import LAST, Characters, Ranges, joined, others
from slipring.engines.constraints.lark.lark_parser import Definition, read_definition
from slipring.engines.constraints.lark.productions import LONGEST, Key, Productions, State
from slipring.engines.constraints.lark.regex_parser import read_pattern
from slipring.engines.constraints.lark.syntax_tree import Either, Node, Repeated, Sequence, Terminal, Unknown
from slipring.protocol.definitions import Grammar

_STATES = (State(True), State(False))
_SIGNS = frozenset('"\\[]^-/')
"""What means something in a class, to one reader or another."""
ANY_STRING = Grammar("regex", r"[\s\S]*")


def gbnf_rules(grammar: Grammar, name: str) -> tuple[str, ...] | None:
    """Rules for what stands between the quotes, by this name and by names that begin with it; None: there is
    something about the grammar that cannot be written so."""
    try:
        productions = Productions(_definition(grammar), _Terminals().write, _STATES)
    except (Unknown, RecursionError):
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


def _definition(grammar: Grammar) -> Definition:
    if grammar.syntax == "lark":
        return read_definition(grammar.definition)
    return Definition({"start": Terminal(read_pattern(grammar.definition))}, None)


class _Terminals:
    """Writes the terminals of one grammar, as far as that leads somewhere."""

    def __init__(self) -> None:
        self._left = LONGEST
        self._written: dict[Node, str | None] = {}

    def write(self, pattern: Node, start: State, end: State) -> str | None:
        """A pattern as it is written within a JSON string, wherever it stands; None: it cannot be."""
        if pattern not in self._written:
            text = self._written[pattern] = self._write(pattern, start, end)
            self._left -= len(text or "")
            if self._left < 0:
                raise Unknown("the size of its terminals")
        return self._written[pattern]

    def _write(self, pattern: Node, start: State, end: State) -> str | None:
        match pattern:
            case Characters():
                return _character(pattern)
            case Sequence(items):
                parts = [self.write(item, start, end) for item in items]
                return None if None in parts else " ".join(filter(None, parts)) or '""'
            case Either(options):
                found = [text for option in options if (text := self.write(option, start, end)) is not None]
                return f"({' | '.join(found)})" if found else None
            case Repeated(item, least, most):
                text = self.write(item, start, end)
                if text is None or most == 0:
                    return '""' if least == 0 else None
                # Some readers would take two counts in a row for one of another kind.
                lead = '"" ' if isinstance(_only(item), Repeated) else ""
                return f"({lead}{text}){_times(least, most)}"
        raise Unknown("a rule in a terminal")


def _only(pattern: Node) -> Node:
    """A pattern without what is around it and says nothing."""
    while isinstance(pattern, Sequence) and len(pattern.items) == 1:
        pattern = pattern.items[0]
    return pattern


def _times(least: int, most: int | None) -> str:
    if most is None and least < 2:
        return "*" if least == 0 else "+"
    return "?" if (least, most) == (0, 1) else f"{{{least},{'' if most is None else most}}}"


def _character(characters: Characters) -> str | None:
    ranges, letters = characters.unescaped(), characters.escapes()
    found = [_class(ranges)] if ranges else []
    if letters:
        found.append(rf'"\\" {_class(joined((ord(letter), ord(letter)) for letter in letters))}')
    if len(found) < 2:
        return f"({found[0]})" if letters else next(iter(found), None)
    return f"({' | '.join(found)})"


def _class(ranges: Ranges) -> str:
    """Sets without an end are written by what they leave out: not every reader knows that end."""
    return f"[^{_ranges(others(ranges))}]" if ranges[-1][1] == LAST else f"[{_ranges(ranges)}]"


def _ranges(ranges: Ranges) -> str:
    """Codes come last: some readers take every digit that follows for one of theirs."""
    items = [_range(*each) for each in ranges]
    return "".join(sorted(items, key=lambda item: item.startswith("\\")))


def _range(first: int, last: int) -> str:
    ends = [chr(code) for code in dict.fromkeys((first, last))]
    is_plain = all(end.isprintable() and end not in _SIGNS for end in ends)
    return "-".join(ends if is_plain else [rf"\x{ord(end):02X}" if end.isascii() else end for end in ends])
