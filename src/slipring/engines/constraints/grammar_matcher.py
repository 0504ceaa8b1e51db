"""Grammars of custom tools, compiled: whether one can be followed, and whether a text follows it.

llguidance compiles them. ``check_grammar`` runs in a sandbox, since a short grammar can take for ever. A
grammar that has passed it may be compiled in the serving process, in a thread.
"""

import re
from functools import lru_cache
from importlib import import_module
from typing import Any

from slipring.protocol.definitions import Grammar

_MOST_RULES = 500
"""The compiler recurses from rule to rule, and with some thousands of them overflows its stack."""
_MOST_EXPANDED = 20_000
"""Terminals are copied wherever they are named: a few lines can ask for millions of copies."""
_FOREIGN = re.compile(r"%(?:json|lark|regex|llguidance)\b")
_DEFINED = re.compile(r"^[ \t]*[?!]?(\w+)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_TERMINAL = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")
_TOO_LARGE = re.compile(r"too many|too large|max is|limit|fuel", re.IGNORECASE)
TOO_LARGE = "it is too large"
_LONGEST_COMPLAINT = 300
_CHOICES, _STEPS = 64, 1000
"""How far a grammar is followed to see what that takes: over so many bytes that are one of several, and so
many in all."""
_FUEL_PER_STATE = 20
"""What the compiler counts while it builds the automaton of a grammar's terminals, for each state that is
allowed. At 10,000 states that is its own default for one step."""


def check_grammar(syntax: str, definition: str, max_states: int) -> str | None:
    """What keeps a grammar from being compiled and followed, if anything is known to."""
    if syntax == "lark" and (excess := _excess(definition)) is not None:
        return excess
    text = _compilable(syntax, definition)
    return invalid(text) or followed(text, max_states)


def invalid(text: str) -> str | None:
    """What is wrong with a grammar in llguidance's form, as far as it can be read from the text."""
    failed, complaints = _library().LLMatcher.validate_grammar_with_warnings(text)
    if not failed:
        return None
    return _words("".join(complaints[:1])) or "it is not a grammar"


def followed(text: str, max_states: int) -> str | None:
    """Compile a grammar in llguidance's form and follow it for some bytes; what was in the way."""
    compiled = _reader(text, max_states)
    for share in (0.0, 0.5, 1.0):
        if said := _walk(compiled.deep_copy(), share):
            return _explained(said)
    return None


def _walk(reader: Any, share: float) -> str:
    """Follow a grammar along the first, the middle or the last of the bytes that may come next; the error
    that ends it, if one does."""
    choices = 0
    for _ in range(_STEPS):
        error = str(reader.get_error())
        if error or reader.is_stopped() or choices == _CHOICES:
            return error
        mask = reader.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if allowed:
            choices += len(allowed) > 1
            reader.consume_token(allowed[int(share * (len(allowed) - 1))])
        elif not reader.get_error():
            return ""  # it ends here
    return ""


def matcher(grammar: Grammar, max_states: int) -> Any:
    """llguidance's matcher, which reads texts of a grammar byte by byte; None if it cannot be compiled."""
    reader = _reader(_compilable(grammar.syntax, grammar.definition), max_states)
    return None if reader.get_error() else reader


def schema_matcher(schema: bytes, max_states: int, *, lenient: bool = False) -> Any:
    """llguidance's matcher for JSON without white space that fits a schema, which must be an object.

    Its ``get_error`` is not empty if the schema cannot be compiled. Raises ``ValueError`` if llguidance
    cannot parse the schema. ``lenient``: keywords that llguidance does not support are ignored.
    """
    options = {
        "whitespace_flexible": False,
        "item_separator": ",",
        "key_separator": ":",
        "lenient": lenient,
        "coerce_one_of": lenient,
    }
    text = _library().LLMatcher.grammar_from_json_schema(schema.decode(), overrides=options)
    return _reader(text, max_states)


def error_of(matcher: Any) -> str:
    """The error of a matcher on one line, without a full stop; empty if it has none. If a limit was exceeded,
    it begins with ``TOO_LARGE``."""
    return _explained(str(matcher.get_error()))


class Proof:
    """Holds a text against a grammar as it comes.

    Python's own regular expressions are not asked: there are some that take years to fail, and both the
    expression and, by way of the model, the text may be chosen by whoever wants that.
    """

    def __init__(self, reader: Any) -> None:
        """``reader``: a matcher that nobody else uses; None: it cannot be told what fits."""
        self._reader = reader

    def take(self, text: str) -> bool:
        """Read on; False: whatever follows, it will not fit."""
        if self._reader is None:
            return True
        data = text.encode("utf-8", "surrogatepass")
        taken = int(self._reader.try_consume_tokens(list(data)))
        if taken == len(data):
            return True
        if self._reader.is_error():  # it has grown too large to be followed
            self._reader = None
        return self._reader is None

    def ends(self) -> bool | None:
        """Whether what was read is whole; None where that cannot be told."""
        return bool(self._reader.is_accepting()) if self._reader is not None else None


@lru_cache(maxsize=1)
def _library() -> Any:
    """llguidance, imported when the first grammar or schema is compiled."""
    return import_module("llguidance")


@lru_cache(maxsize=1)
def _bytewise() -> Any:
    return _library().LLTokenizer("byte")


def _reader(text: str, max_states: int) -> Any:
    library = _library()
    limits = library.LLParserLimits(
        max_lexer_states=max_states,
        step_max_items=max_states,
        initial_lexer_fuel=_FUEL_PER_STATE * max_states,
        step_lexer_fuel=_FUEL_PER_STATE * max_states,
        verbose_errors=False,
    )
    return library.LLMatcher(_bytewise(), text, log_level=0, limits=limits)


def _compilable(syntax: str, definition: str) -> str:
    """A grammar in the form that llguidance takes."""
    matcher = _library().LLMatcher
    write = matcher.grammar_from_regex if syntax == "regex" else matcher.grammar_from_lark
    return str(write(definition))


def _words(said: str) -> str:
    """What the compiler says, on one line and not at the length that a client chose."""
    return " ".join(said.replace("<non-verbose/>", "").split())[:_LONGEST_COMPLAINT].rstrip(".")


def _explained(error: str) -> str:
    words = _words(error)
    return f"{TOO_LARGE}: {words} (max_grammar_states)" if _TOO_LARGE.search(words) else words


def _excess(definition: str) -> str | None:
    """What makes a grammar one that must not be given to the compiler."""
    if _FOREIGN.search(definition):
        return "of all directives, only %import and %ignore are known"
    # By what bounds the number of rules from above, whatever is a string or a comment.
    if definition.count(":") > _MOST_RULES or definition.count("\n") > 2 * _MOST_RULES:
        return f"more than {_MOST_RULES} rules"
    return "its terminals are too large" if _expanded(definition) > _MOST_EXPANDED else None


def _expanded(definition: str) -> int:
    """How many copies of terminals are made, at most."""
    heads = list(_DEFINED.finditer(definition))
    ends = [*(head.start() for head in heads[1:]), len(definition)][: len(heads)]
    named = {
        head[1]: _TERMINAL.findall(definition, head.end(), end) for head, end in zip(heads, ends, strict=True)
    }
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = _MOST_EXPANDED + 1  # of a circle, which no terminal can be
            sizes[name] = 1 + sum(size(each) for each in named.get(name, ()))
        return sizes[name]

    return sum(size(name) for name in named)
