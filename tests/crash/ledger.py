"""What clients have asked for and were told, to be held against what a store says after a crash."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Line = tuple[str, str]
"""An item as it is compared: whose it is and its text."""

_BYTES_PER_TOKEN, _TOKENS_PER_ITEM = 4, 4


@dataclass(eq=False)
class Talk:
    """A conversation, and what happened in it, in order."""

    id: str
    entries: list["Turn | Note"] = field(default_factory=list)
    is_settled: bool = True
    """Whether it is known what is in it. If not, a turn was cut off, and the store has to tell."""

    def lines(self) -> list[Line]:
        return [line for entry in self.entries for line in entry.lines()]


@dataclass(eq=False)
class Note:
    """An item that was added to a conversation by hand."""

    text: str
    is_acknowledged: bool = False

    def lines(self) -> list[Line]:
        return [("user", self.text)]


@dataclass(eq=False)
class Turn:
    """A response that was asked for."""

    number: int
    text: str
    parent: "Turn | None" = None
    talk: Talk | None = None
    is_stored: bool = True
    is_background: bool = False
    is_cancelled: bool = False
    """Whether a client has asked for that."""
    before: list[Line] | None = None
    """What a turn of a conversation found there."""
    id: str | None = None
    """Once a client was told."""
    response: Json | None = None
    """As it ended, once a client was told."""
    deletion: str = ""
    """``asked``, and then ``done`` once a client was told."""

    @property
    def is_acknowledged(self) -> bool:
        return self.response is not None

    @property
    def is_complete(self) -> bool:
        return self.response is not None and self.response["status"] == "completed"

    @property
    def depth(self) -> int:
        return sum(1 for _ in self.chain())

    def chain(self) -> Iterator["Turn"]:
        """This turn and those that it builds on, newest first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def lines(self) -> list[Line]:
        """What it adds."""
        assert self.response is not None
        return [("user", self.text), *(("assistant", spoken(item)) for item in self.response["output"])]

    def input_lines(self) -> list[Line]:
        """All that went into it."""
        if self.before is not None:
            return [*self.before, ("user", self.text)]
        earlier = [turn for turn in self.chain() if turn is not self]
        return [*(line for turn in reversed(earlier) for line in turn.lines()), ("user", self.text)]

    def input_tokens(self) -> int:
        """As many as the simulated engine counts: one that has lost a part of the history counts fewer."""
        return sum(
            len(f"{role}\n{text}".encode()) // _BYTES_PER_TOKEN + _TOKENS_PER_ITEM
            for role, text in self.input_lines()
        )


class Ledger:
    """All turns and conversations of a storm, over all its rounds."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.talks: list[Talk] = []
        self._numbers = itertools.count()

    def ask(self, **fields: Any) -> Turn:
        number = next(self._numbers)
        # Texts of different lengths, so that no part can stand in for another in a count.
        turn = Turn(number, f"turn {number}" + " and more" * (number % 23), **fields)
        self.turns.append(turn)
        if turn.talk is not None:
            turn.before = turn.talk.lines()
            turn.talk.entries.append(turn)
            turn.talk.is_settled = False
        return turn

    def acknowledge(self, turn: Turn, response: Json) -> None:
        turn.id, turn.response = response["id"], response
        if turn.talk is not None:
            turn.talk.is_settled = True

    def acknowledged(self) -> list[Turn]:
        """Those whose client was told that they are stored and that have not been deleted."""
        return [turn for turn in self.turns if turn.is_complete and turn.is_stored and not turn.deletion]

    def open_runs(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.is_background and turn.id and not turn.response]


def spoken(item: Json) -> str:
    """The text of a message."""
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def as_line(item: Json) -> Line:
    return item["role"], spoken(item)
