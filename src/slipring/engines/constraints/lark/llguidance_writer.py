"""Writes a Lark grammar of texts as a grammar of JSON strings with such texts, for llguidance.

llguidance's lexer matches as much as it can and never backtracks. Within a JSON string that goes wrong: after
a backslash it cannot know whether the terminal continues (``\\t``) or the next one begins (``\\n``). So each
terminal is written twice, as it is and with the backslash of the next escape appended; and a terminal after
such a backslash is written without its first backslash. Then the lexer splits a text as it would outside
JSON.
"""

from slipring.engines.constraints.lark.character_sets import CharacterSet
from slipring.engines.constraints.lark.lark_parser import parse_lark
from slipring.engines.constraints.lark.productions import MAX_TERMINAL_CHARS, Key, Productions, State
from slipring.engines.constraints.lark.syntax_tree import (
    Either,
    Node,
    Repeated,
    Sequence,
    Unsupported,
    beginnings,
)

_STATES = (State(True), State(True, True), State(False))
_BACKSLASH = r"\\"


def llguidance_rules(definition: str, name: str) -> tuple[str, ...] | None:
    """Rules for the text between the quotes; None if the grammar cannot be converted.

    The first rule has the name ``name``, the names of the others begin with it.
    """
    try:
        productions = Productions(parse_lark(definition), _TerminalWriter().write, _STATES)
    except (Unsupported, RecursionError):
        return None
    return tuple(_RuleWriter(productions, name).lines()) if productions.starts else None


class _RuleWriter:
    """Names productions and terminals, and writes them as lines."""

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


class _TerminalWriter:
    """Writes the terminals of one grammar, up to ``MAX_TERMINAL_CHARS``."""

    def __init__(self) -> None:
        self._left = MAX_TERMINAL_CHARS
        self._written: dict[Node, str | None] = {}

    def write(self, pattern: Node, start: State, end: State) -> str | None:
        """See ``productions.Writer``."""
        text = self._rest(pattern) if start.halfway else self._whole(pattern)
        return text if text is None or not end.halfway else f"(?:{text}){_BACKSLASH}"

    def _rest(self, pattern: Node) -> str | None:
        """A pattern whose first character is escaped, without the backslash; None if no text begins so."""
        choices = []
        for first, following in beginnings(pattern):
            if letters := first.escapes():
                rest = self._whole(following)
                choices += [_one_of(letters) + rest] if rest is not None else []
        return f"(?:{'|'.join(choices)})" if choices else None

    def _whole(self, pattern: Node) -> str | None:
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
                return _character(pattern)
            case Sequence(items):
                parts = [self._whole(item) for item in items]
                return None if None in parts else "".join(filter(None, parts))
            case Either(options):
                choices = [text for option in options if (text := self._whole(option)) is not None]
                return f"(?:{'|'.join(choices)})" if choices else None
            case Repeated(item, least, most):
                text = self._whole(item)
                if text is None:
                    return "" if least == 0 else None
                return f"(?:{text}){{{least},{'' if most is None else most}}}"
        raise Unsupported("rule within a terminal")


def _character(characters: CharacterSet) -> str | None:
    plain, letters = characters.plain(), characters.escapes()
    if not letters:
        return plain
    escaped = _BACKSLASH + _one_of(letters)
    return escaped if plain is None else f"(?:{plain}|{escaped})"


def _one_of(letters: str) -> str:
    return f"[{''.join(_BACKSLASH if letter == chr(92) else letter for letter in letters)}]"
