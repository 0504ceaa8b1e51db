"""Which grammars of custom tools are refused: llguidance cannot compile them, or they cost too much.

``check_grammar`` runs in a sandbox, since a short grammar can take unlimited time. A grammar that has passed
the check may be compiled in the serving process, in a thread.
"""

import re
from functools import lru_cache
from importlib import import_module
from typing import Any

from slipring.protocol.tools.grammars_and_schemas import Grammar

_MAX_RULES = 500
"""llguidance recurses from rule to rule, and overflows its stack with some thousands of them."""
_MAX_TERMINAL_COPIES = 20_000
"""llguidance copies a terminal wherever it is named: a few lines can cause millions of copies."""
_UNSUPPORTED_DIRECTIVE = re.compile(r"%(?:json|lark|regex|llguidance)\b")
_DEFINITION = re.compile(r"^[ \t]*[?!]?(\w+)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_TERMINAL = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")
_LIMIT_ERROR = re.compile(r"too many|too large|max is|limit|fuel", re.IGNORECASE)
TOO_LARGE = "it is too large"
_MAX_ERROR_CHARS = 300
_WALK_CHOICES, _WALK_BYTES = 64, 1000
"""How long a walk through a grammar is: bytes at which the grammar allows several, and bytes in all."""
_FUEL_PER_STATE = 20
"""Fuel that llguidance may spend on the automaton of a grammar's terminals, per allowed state. At 10,000
states this is llguidance's default for one step."""


def check_grammar(syntax: str, definition: str, max_states: int) -> str | None:
    """Why a grammar cannot be compiled or is too expensive to match; None if no problem is found."""
    if syntax == "lark" and (problem := _size_problem(definition)) is not None:
        return problem
    text = _llguidance_text(syntax, definition)
    return syntax_error(text) or walk_error(text, max_states)


def syntax_error(text: str) -> str | None:
    """The first error of a grammar in llguidance's format that can be found without compiling it."""
    failed, errors = _library().LLMatcher.validate_grammar_with_warnings(text)
    if not failed:
        return None
    return _one_line("".join(errors[:1])) or "it is not a grammar"


def walk_error(text: str, max_states: int) -> str | None:
    """Compile a grammar in llguidance's format and walk through it for some bytes; return the first error."""
    compiled = _compile(text, max_states)
    for share in (0.0, 0.5, 1.0):
        if error := _walk(compiled.deep_copy(), share):
            return _explain(error)
    return None


def _walk(matcher: Any, share: float) -> str:
    """Feed a matcher one of the bytes that it allows, step by step; return its error, or an empty string.

    ``share`` selects the byte: 0 the first, 0.5 the middle one, 1 the last.
    """
    choices = 0
    for _ in range(_WALK_BYTES):
        error = str(matcher.get_error())
        if error or matcher.is_stopped() or choices == _WALK_CHOICES:
            return error
        allowed = int.from_bytes(matcher.compute_bitmask()[:32], "little")  # a bit for each byte
        if allowed:
            number = allowed.bit_count()
            choices += number > 1
            matcher.consume_token(_set_bit(allowed, int(share * (number - 1))))
        elif not matcher.get_error():
            return ""  # the text is complete
    return ""


def _set_bit(bits: int, index: int) -> int:
    """The place of a set bit, counted among the set bits from the lowest."""
    if index == bits.bit_count() - 1:
        return bits.bit_length() - 1
    for _ in range(index):
        bits &= bits - 1
    return (bits & -bits).bit_length() - 1


def compile_grammar(grammar: Grammar, max_states: int) -> Any:
    """llguidance's matcher for a grammar, with bytes as tokens; None if it cannot be compiled."""
    matcher = _compile(_llguidance_text(grammar.syntax, grammar.definition), max_states)
    return None if matcher.get_error() else matcher


def compile_schema(schema: bytes, max_states: int, *, lenient: bool = False) -> Any:
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
    return _compile(text, max_states)


def error_of(matcher: Any) -> str:
    """The error of a matcher on one line, without a full stop; empty if it has none. If a limit was exceeded,
    it begins with ``TOO_LARGE``."""
    return _explain(str(matcher.get_error()))


@lru_cache(maxsize=1)
def _library() -> Any:
    """llguidance, imported when the first grammar or schema is compiled."""
    return import_module("llguidance")


@lru_cache(maxsize=1)
def _byte_tokenizer() -> Any:
    return _library().LLTokenizer("byte")


def _compile(text: str, max_states: int) -> Any:
    """A matcher for a grammar in llguidance's format. Its ``get_error`` says if that failed."""
    library = _library()
    limits = library.LLParserLimits(
        max_lexer_states=max_states,
        step_max_items=max_states,
        initial_lexer_fuel=_FUEL_PER_STATE * max_states,
        step_lexer_fuel=_FUEL_PER_STATE * max_states,
        verbose_errors=False,
    )
    return library.LLMatcher(_byte_tokenizer(), text, log_level=0, limits=limits)


def _llguidance_text(syntax: str, definition: str) -> str:
    """A client's grammar in llguidance's format."""
    matcher = _library().LLMatcher
    convert = matcher.grammar_from_regex if syntax == "regex" else matcher.grammar_from_lark
    return str(convert(definition))


def _one_line(error: str) -> str:
    """An error of llguidance on one line. Cut, because it quotes text of the client."""
    return " ".join(error.replace("<non-verbose/>", "").split())[:_MAX_ERROR_CHARS].rstrip(".")


def _explain(error: str) -> str:
    line = _one_line(error)
    return f"{TOO_LARGE}: {line} (max_grammar_states)" if _LIMIT_ERROR.search(line) else line


def _size_problem(definition: str) -> str | None:
    """Why a Lark grammar must not be passed to llguidance, which could crash; None if it may."""
    if _UNSUPPORTED_DIRECTIVE.search(definition):
        return "of all directives, only %import and %ignore are known"
    # Upper bounds of the number of rules: strings and comments are counted too.
    if definition.count(":") > _MAX_RULES or definition.count("\n") > 2 * _MAX_RULES:
        return f"more than {_MAX_RULES} rules"
    return "its terminals are too large" if _terminal_copies(definition) > _MAX_TERMINAL_COPIES else None


def _terminal_copies(definition: str) -> int:
    """Upper bound of the number of copies of terminals that llguidance makes."""
    heads = list(_DEFINITION.finditer(definition))
    ends = [*(head.start() for head in heads[1:]), len(definition)][: len(heads)]
    named = {
        head[1]: _TERMINAL.findall(definition, head.end(), end) for head, end in zip(heads, ends, strict=True)
    }
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = _MAX_TERMINAL_COPIES + 1  # the size seen by a terminal that contains itself
            sizes[name] = 1 + sum(size(each) for each in named.get(name, ()))
        return sizes[name]

    return sum(size(name) for name in named)
