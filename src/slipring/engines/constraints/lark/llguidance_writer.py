"""Grammars of texts as grammars of JSON strings that hold such texts, for llguidance.

Its lexer takes as much as it can and never goes back. Within a string that is not enough: after a backslash
one cannot tell whether the terminal goes on (``\\t``) or the next one begins (``\\n``). So each terminal
comes twice: as it is, and with the backslash of whatever follows it; and the one that follows such a
backslash is written from its second half on. Then texts are taken apart as they would be outside of JSON.
"""

from slipring.engines.constraints.lark.character_sets import Characters
from slipring.engines.constraints.lark.lark_parser import read_definition
from slipring.engines.constraints.lark.productions import LONGEST, Key, Productions, State
from slipring.engines.constraints.lark.syntax_tree import (
    Either,
    Node,
    Repeated,
    Sequence,
    Unknown,
    beginnings,
)

_STATES = (State(True), State(True, True), State(False))
_BACKSLASH = r"\\"


def llguidance_rules(definition: str, name: str) -> tuple[str, ...] | None:
    """Rules for what stands between the quotes, by this name and by names that begin with it; None: there is
    something about the grammar that cannot be written so."""
    try:
        productions = Productions(read_definition(definition), _Terminals().write, _STATES)
    except (Unknown, RecursionError):
        return None
    return tuple(_Names(productions, name).lines()) if productions.starts else None


class _Names:
    """Writes productions down."""

    def __init__(self, productions: Productions, name: str) -> None:
        self._productions = productions
        self._name = name
        self._rules = {key: f"{name}_{number}" for number, key in enumerate(productions.rules)}
        self._terminals: dict[str, str] = {}

    def lines(self) -> list[str]:
        starts = " | ".join(self._rules[key] for key in self._productions.starts)
        rules = [
            f"{self._rules[key]}: {' | '.join(map(self._option, options))}"
            for key, options in self._productions.rules.items()
        ]
        terminals = [f"{name}: /{text}/" for text, name in self._terminals.items()]
        return [f"{self._name}: {starts}", *rules, *terminals]

    def _option(self, option: tuple[Key | str, ...]) -> str:
        return " ".join(map(self._symbol, option)) or '""'

    def _symbol(self, symbol: Key | str) -> str:
        if isinstance(symbol, Key):
            return self._rules[symbol]
        return self._terminals.setdefault(symbol, f"{self._name.upper()}_{len(self._terminals)}")


class _Terminals:
    """Writes the terminals of one grammar, as far as that leads somewhere."""

    def __init__(self) -> None:
        self._left = LONGEST
        self._written: dict[Node, str | None] = {}

    def write(self, pattern: Node, start: State, end: State) -> str | None:
        text = self._rest(pattern) if start.halfway else self._whole(pattern)
        return text if text is None or not end.halfway else f"(?:{text}){_BACKSLASH}"

    def _rest(self, pattern: Node) -> str | None:
        """What follows where the backslash has been read already."""
        found = []
        for first, following in beginnings(pattern):
            if letters := first.escapes():
                rest = self._whole(following)
                found += [_one_of(letters) + rest] if rest is not None else []
        return f"(?:{'|'.join(found)})" if found else None

    def _whole(self, pattern: Node) -> str | None:
        """A pattern as it is written within a JSON string; None: it cannot be."""
        if pattern not in self._written:
            text = self._written[pattern] = self._write(pattern)
            self._left -= len(text or "")
            if self._left < 0:
                raise Unknown("the size of its terminals")
        return self._written[pattern]

    def _write(self, pattern: Node) -> str | None:
        match pattern:
            case Characters():
                return _character(pattern)
            case Sequence(items):
                parts = [self._whole(item) for item in items]
                return None if None in parts else "".join(filter(None, parts))
            case Either(options):
                found = [text for option in options if (text := self._whole(option)) is not None]
                return f"(?:{'|'.join(found)})" if found else None
            case Repeated(item, least, most):
                text = self._whole(item)
                if text is None:
                    return "" if least == 0 else None
                return f"(?:{text}){{{least},{'' if most is None else most}}}"
        raise Unknown("a rule in a terminal")


def _character(characters: Characters) -> str | None:
    plain, letters = characters.plain(), characters.escapes()
    if not letters:
        return plain
    escaped = _BACKSLASH + _one_of(letters)
    return escaped if plain is None else f"(?:{plain}|{escaped})"


def _one_of(letters: str) -> str:
    return f"[{''.join(_BACKSLASH if letter == chr(92) else letter for letter in letters)}]"
