"""Records what clients have requested and received, for comparison with the store after a crash."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Line = tuple[str, str]
"""An item as it is compared: its role and its text."""

ENDINGS = ("completed", "incomplete")
"""Statuses of responses that are stored."""
_BYTES_PER_TOKEN, _TOKENS_PER_ITEM = 4, 4


@dataclass(eq=False)
class Talk:
    """A conversation, with its turns and notes in order."""

    id: str
    entries: list["Turn | Note"] = field(default_factory=list)
    is_settled: bool = True
    """Whether its content is known. If not, a turn was interrupted, and the store decides."""

    def lines(self) -> list[Line]:
        return [line for entry in self.entries for line in entry.lines()]


@dataclass(eq=False)
class Note:
    """An item that a client added directly to a conversation."""

    text: str
    is_acknowledged: bool = False

    def lines(self) -> list[Line]:
        return [("user", self.text)]


@dataclass(eq=False)
class Turn:
    """A response that a client requested."""

    number: int
    text: str
    parent: "Turn | None" = None
    talk: Talk | None = None
    is_stored: bool = True
    is_background: bool = False
    is_cancelled: bool = False
    """Whether a client has requested its cancellation."""
    before: list[Line] | None = None
    """The items of its conversation before the turn."""
    id: str | None = None
    """Set once a client has received it."""
    response: Json | None = None
    """The final object, once a client has received it."""
    deletion: str = ""
    """State of its deletion: ``asked``, then ``done`` once the server has confirmed it."""
    is_forbidden: bool = False
    """Whether the server's safety check has to refuse it."""
    failure: str = ""
    """What the server said if it told a client that the response failed, so that it must not be stored."""

    @property
    def is_acknowledged(self) -> bool:
        return self.response is not None

    @property
    def is_complete(self) -> bool:
        return self.response is not None and self.response["status"] in ENDINGS

    @property
    def depth(self) -> int:
        return sum(1 for _ in self.chain())

    def chain(self) -> Iterator["Turn"]:
        """Return this turn and its ancestors, newest first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def lines(self) -> list[Line]:
        """Return the items that the turn adds."""
        assert self.response is not None
        return [("user", self.text), *(("assistant", spoken(item)) for item in self.response["output"])]

    def input_lines(self) -> list[Line]:
        """Return all items in the context of the response."""
        if self.before is not None:
            return [*self.before, ("user", self.text)]
        earlier = [turn for turn in self.chain() if turn is not self]
        return [*(line for turn in reversed(earlier) for line in turn.lines()), ("user", self.text)]

    def input_tokens(self) -> int:
        """Return the count of the simulated engine, which is lower if a part of the history was lost."""
        return sum(
            len(f"{role}\n{text}".encode()) // _BYTES_PER_TOKEN + _TOKENS_PER_ITEM
            for role, text in self.input_lines()
        )


def plain_wording(number: int) -> str:
    """Texts of different lengths, so that a lost part always changes the count."""
    return f"turn {number}" + " and more" * (number % 23)


class Ledger:
    """All turns and conversations of a storm, over all its rounds."""

    def __init__(self, wording: Callable[[int], str]) -> None:
        """``wording``: the text of each turn, by number."""
        self.turns: list[Turn] = []
        self.talks: list[Talk] = []
        self._numbers = itertools.count()
        self._wording = wording

    def ask(self, **fields: Any) -> Turn:
        number = next(self._numbers)
        turn = Turn(number, self._wording(number), **fields)
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
        """Return the turns that were acknowledged as stored and not deleted."""
        return [turn for turn in self.turns if turn.is_complete and turn.is_stored and not turn.deletion]

    def open_runs(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.is_background and turn.id and not turn.response]


def spoken(item: Json) -> str:
    """Return the text of a message."""
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def as_line(item: Json) -> Line:
    return item["role"], spoken(item)
