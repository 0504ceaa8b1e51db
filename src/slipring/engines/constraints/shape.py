"""Shapes of text: plain data that each writer of constraints writes in its own language.

A shape may be part of several others: a writer that can name parts writes it once.
"""

from dataclasses import dataclass
from typing import Final

from slipring.protocol.tools.grammars_and_schemas import Grammar


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Exactly this text. Parts of it may be control tokens of the model."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Text that a regular expression matches as a whole."""

    regex: str


@dataclass(frozen=True, slots=True, eq=False)
class TextUntil:
    """Any text and the mark that ends it, which the text does not contain."""

    mark: str
    regex: str = ""
    """Matches the whole text before the mark; empty: any text."""


@dataclass(frozen=True, slots=True, eq=False)
class Json:
    """A JSON value that fits a schema."""

    schema: bytes
    strict: bool
    """Whether the whole schema must be enforced, or only what the engine supports."""
    param: str
    """The field of the request that holds the schema."""
    fallback: bytes = b""
    """Enforced instead of a schema that is not strict and cannot be enforced; empty: what is possible."""


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """The text of a JSON string, between its quotes, that follows the Lark grammar of a custom tool."""

    grammar: Grammar


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One shape after the other."""

    parts: "tuple[Shape, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of several shapes."""

    options: "tuple[Shape, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A shape or nothing."""

    shape: "Shape"


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """A shape one or more times."""

    shape: "Shape"
    separator: str
    """Never empty."""
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FreeText:
    """Any text up to the end of the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class TextWithCalls:
    """Any text. What follows one of the triggers in it must be calls."""

    triggers: "tuple[tuple[str, Shape], ...]"
    loops: bool
    """Whether text and further calls may follow a call."""
    ignored: tuple[str, ...] = ()
    """Marks that may be in the text. Their control tokens are not text for every writer."""


@dataclass(frozen=True, slots=True, eq=False)
class TextOrCalls:
    """Calls that no mark precedes, or text that does not begin like one."""

    calls: "Shape"


Shape = (
    Mark
    | Pattern
    | TextUntil
    | Json
    | Input
    | Sequence
    | Choice
    | Optional
    | Repeated
    | FreeText
    | TextWithCalls
    | TextOrCalls
)

SPACE: Final = Pattern(r"[ \t\r\n]{0,8}")
"""White space that a model may write between the parts of an answer."""


def sequence(*parts: Shape) -> Shape:
    """The parts one after the other, without empty ones; adjacent marks are one."""
    found: list[Shape] = []
    for part in parts:
        for each in part.parts if isinstance(part, Sequence) else (part,):
            if isinstance(each, Mark) and not each.text:
                continue
            last = found[-1] if found else None
            if isinstance(each, Mark) and isinstance(last, Mark):
                found[-1] = Mark(last.text + each.text)
            else:
                found.append(each)
    return found[0] if len(found) == 1 else Sequence(tuple(found))


def choice(options: "list[Shape]") -> Shape:
    """One of the options, of which there is at least one."""
    return options[0] if len(options) == 1 else Choice(tuple(options))
