"""The conversations of loops: what each turn sends, so that the server knows the conversation so far."""

import copy
from abc import ABC, abstractmethod

from slipring.commands.bench.client.exchange import PAUSE, Fields, TurnExchange
from slipring.commands.bench.workloads.plan import Item

KEEP_REASONING: Fields = {"include": ["reasoning.encrypted_content"]}
"""Requests reasoning in a form that the client can send back, for servers that store nothing."""


class Context(ABC):
    """Builds the requests of one conversation."""

    previous_response_id: str | None = None
    """The response that the next turn continues; None if it names none."""

    @property
    def is_open(self) -> bool:
        """Whether the next turn continues the last response instead of creating a new one."""
        return False

    @abstractmethod
    def request(self, head: Fields, new: list[Item]) -> Fields:
        """The fields of a request that adds these items. ``head``: model, instructions, tools and the
        like."""

    @abstractmethod
    def learn(self, exchange: TurnExchange) -> None:
        """Add an answer to the conversation."""

    def fork(self) -> "Context":
        """A second conversation with the same beginning."""
        return copy.deepcopy(self)


class FullHistory(Context):
    """The client keeps the conversation and sends all of it in every turn."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._items += new
        return {**head, "store": False, "input": self._items}

    def learn(self, exchange: TurnExchange) -> None:
        self._items += as_input(exchange.answer)


class Chain(Context):
    """The server keeps the conversation; the client sends new items and a ``previous_response_id``."""

    def __init__(self, *, is_stored: bool = False) -> None:
        self._is_stored = is_stored

    def request(self, head: Fields, new: list[Item]) -> Fields:
        fields: Fields = {**head, "store": self._is_stored, "input": new}
        if self.previous_response_id is not None:
            fields["previous_response_id"] = self.previous_response_id
        return fields

    def learn(self, exchange: TurnExchange) -> None:
        assert exchange.response is not None  # no turn follows an exchange without one
        self.previous_response_id = exchange.response["id"]


class Rollout(Chain):
    """The response stays open; the client appends the outputs of its calls to it."""

    def __init__(self) -> None:
        super().__init__()
        self._open_id: str | None = None

    @property
    def is_open(self) -> bool:
        return self._open_id is not None

    def request(self, head: Fields, new: list[Item]) -> Fields:
        if self._open_id is not None:
            return {"type": "response.append", "response_id": self._open_id, "input": new}
        return {**super().request(head, new), "rollout": True}

    def learn(self, exchange: TurnExchange) -> None:
        if exchange.events[-1]["type"] == PAUSE:
            self._open_id = exchange.events[-1]["response_id"]
            return
        self._open_id = None
        super().learn(exchange)


def as_input(output: list[Item]) -> list[Item]:
    """An answer's items as input of the next turn. Reasoning is kept unchanged if the server can decrypt it,
    else dropped. Other items lose their ids, which the server would look up."""
    items = []
    for item in output:
        if item["type"] != "reasoning":
            items.append({key: value for key, value in item.items() if key not in ("id", "status")})
        elif item.get("encrypted_content"):
            items.append(item)
    return items
