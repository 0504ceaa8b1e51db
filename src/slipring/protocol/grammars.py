"""Grammars of custom tools: what the input of a call may be.

They are compiled by llguidance where it is installed, so that one that means nothing is refused with the
request. Without it regular expressions are looked at by Python, and other grammars are taken as they are.
"""

import re
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from slipring.errors import InvalidRequest
from slipring.protocol import wire

LONGEST = 65_536
"""Of a definition, and of all in a request: they are compiled while others wait."""
_MOST_RULES = 500
"""The compiler goes down from rule to rule, and with some thousands of them through the floor."""
_MOST_EXPANDED = 20_000
"""Terminals are copied wherever they are named: a few lines can ask for millions of copies."""
_FOREIGN = re.compile(r"%(?:json|lark|regex|llguidance)\b")
_DEFINED = re.compile(r"^[ \t]*[?!]?(\w+)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_TERMINAL = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")
_LONGEST_COMPLAINT = 300


class Grammar(Struct, frozen=True, tag_field="type", tag="grammar"):
    """The format of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=LONGEST)]


class _Kind(Struct):
    type: Literal["text", "grammar"]


_kind = msgspec.json.Decoder(_Kind)
_grammar = msgspec.json.Decoder(Grammar)


def read_grammar(data: Raw | UnsetType, where: str) -> Grammar | None:
    """The grammar of a ``format``; None: any text will do. Does not ask whether it means anything."""
    sent = wire.given(data)
    if sent is None or wire.decode(_kind, sent, where=where).type == "text":
        return None
    return wire.decode(_grammar, bytes(sent), where=where)


def check_format(data: Raw | UnsetType, where: str) -> None:
    """Refuse a format that cannot be met, by the field that is wrong."""
    grammar = read_grammar(data, where)
    if grammar is not None and (said := complaint(grammar)) is not None:
        param = f"{where}.definition"
        raise InvalidRequest(f"Invalid '{param}': this grammar cannot be compiled: {said}.", param=param)


@lru_cache(maxsize=1)
def _library() -> Any:
    """llguidance, which comes with the llama engine; loaded by the first grammar."""
    try:
        return import_module("llguidance")
    except ImportError:
        return None


def _compilable(grammar: Grammar) -> str:
    """A grammar in the form that llguidance takes."""
    matcher = _library().LLMatcher
    write = matcher.grammar_from_regex if grammar.syntax == "regex" else matcher.grammar_from_lark
    return str(write(grammar.definition))


@lru_cache(maxsize=256)
def complaint(grammar: Grammar) -> str | None:
    """What keeps a grammar from being compiled, if anything is known to."""
    if grammar.syntax == "lark" and (excess := _excess(grammar.definition)) is not None:
        return excess
    library = _library()
    if library is None:
        return _complaint_of_python(grammar)
    failed, complaints = library.LLMatcher.validate_grammar_with_warnings(_compilable(grammar))
    if not failed:
        return None
    said = " ".join("".join(complaints[:1]).split())
    return said[:_LONGEST_COMPLAINT].rstrip(".") or "it is not a grammar"


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


def _complaint_of_python(grammar: Grammar) -> str | None:
    if grammar.syntax != "regex":
        return None
    try:
        re.compile(grammar.definition)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)[:_LONGEST_COMPLAINT]
    return None


@lru_cache(maxsize=1)
def _bytewise() -> Any:
    return _library().LLTokenizer("byte")


def matcher(grammar: Grammar) -> Any:
    """What reads texts of a grammar byte by byte, as llguidance has it; None where there is nothing."""
    library = _library()
    if library is None or complaint(grammar) is not None:
        return None
    reader = library.LLMatcher(_bytewise(), _compilable(grammar))
    return None if reader.get_error() else reader


class Proof:
    """Holds a text against a grammar as it comes.

    Python's own regular expressions are not asked: there are some that take years to fail, and both the
    expression and, by way of the model, the text may be chosen by whoever wants that.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._reader = matcher(grammar)
        """None: it cannot be told."""

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


def fits(grammar: Grammar, text: str) -> bool | None:
    """Whether a text is of the grammar, all of it; None where that cannot be told."""
    proof = Proof(grammar)
    return proof.ends() if proof.take(text) else False
