"""What all parsers of answers share: text in pieces, the deltas that it makes, and the end of the answer."""

from abc import ABC, abstractmethod
from typing import Final

from slipring.core.generation import Delta, Text, Thought

PIECE: Final = 4096
"""Longer pieces are cut, so that the text searched after each marker stays short."""


class AnswerParser(ABC):
    """Parses one answer. Call ``feed`` with each piece of text, then ``finish``; both return deltas."""

    def __init__(self) -> None:
        self._pending = ""  # unread text
        self._final = self._cut_off = False
        self._deltas: list[Delta] = []

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""

    @property
    @abstractmethod
    def is_holding(self) -> bool:
        """Whether a call is held back until it is complete."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether the text so far ends outside of thoughts, calls and headers, and not with a possible
        marker."""

    def feed(self, text: str) -> list[Delta]:
        """Parse the next piece of text."""
        for at in range(0, len(text), PIECE):
            self._pending += text[at : at + PIECE]
            self._run()
        return self._take_deltas()

    def finish(self, *, cut_off: bool = False) -> list[Delta]:
        """End the answer: emit what is held back, as text if it is not a complete call. ``cut_off``: a limit
        has ended it, not the model, so that a call whose closing marks are missing is not complete."""
        self._final, self._cut_off = True, cut_off
        self._run()
        self._end()
        return self._take_deltas()

    def _run(self) -> None:
        while self._step():
            pass

    @abstractmethod
    def _step(self) -> bool:
        """Read the pending text; return whether the state changed, so that there may be more to read."""

    def _end(self) -> None:  # noqa: B027 - not all parsers hold something back
        """The last text has been read."""

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas


class MessageParser(AnswerParser):
    """Parses one answer that consists of messages: two messages of text, or of thought, in a row are
    separated by an empty line."""

    def __init__(self) -> None:
        super().__init__()
        self._last_kind: type[Delta] | None = None  # of the last message that was not empty
        self._is_empty = True  # nothing of the current message was emitted

    def _add(self, deltas: list[Delta]) -> None:
        """Add deltas; before the first of a message that follows one of its kind, an empty line."""
        for delta in deltas:
            if isinstance(delta, Text | Thought) and self._is_empty and self._last_kind is type(delta):
                delta = type(delta)(f"\n\n{delta.text}")
            self._is_empty = False
            self._last_kind = type(delta)
            self._deltas.append(delta)
