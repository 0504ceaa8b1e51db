"""What a safety check inspects, and what it answers.

A subject is one item of a conversation, or a window of an answer in the making. A verdict is the answer of
one check about one subject. Verdicts are kept with responses, so they contain nothing of the inspected text.
"""

from typing import Literal

from msgspec import Struct

Side = Literal["input", "output"]
Kind = Literal["message", "tool_output", "instructions", "answer", "call", "reasoning", "summary"]


class Subject(Struct, frozen=True):
    """A text that checks inspect, and where in the conversation it stands."""

    side: Side
    kind: Kind
    text: str
    role: str | None = None
    """The role of a message."""
    name: str | None = None
    """The name of the tool that was called, or whose output this is."""
    context: tuple[str, ...] = ()
    """Earlier texts of the conversation, oldest first. A check may read them in order to understand ``text``;
    its verdict is about ``text`` only."""


class Verdict(Struct, frozen=True):
    """The answer of one check about one subject."""

    check: str
    version: str
    flagged: bool
    scores: dict[str, float] = {}
    """A score from 0 to 1 for every category that the check reports."""
    categories: tuple[str, ...] = ()
    """The categories whose score has reached the threshold."""
    failed: str | None = None
    """Why the check gave no answer; it never contains the inspected text. None if the check answered."""
    ms: float = 0.0
    """How long the check took; 0 for a verdict that was known already."""
