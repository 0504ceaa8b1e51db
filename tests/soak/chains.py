"""A conversation as its client knows it. Every answer has to prove that the server read exactly that.

The simulated engine puts a digest of the context that it was given into each answer. A chain computes the
same digest from what its client sent and received, so one lost, repeated or foreign item makes an answer
wrong.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

from slipring.commands.bench.verification import Digest, Expectation, find_digest, find_faults
from slipring.commands.bench.workloads.plan import Need

Json = dict[str, Any]

_STEERED = "the response is incomplete: steered"
_SHOWN = 3000


class Wrong(Exception):
    """The server broke a promise."""


def message(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def output_of(call: Json, text: str) -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def answer_of(events: Sequence[Json]) -> list[Json]:
    """The items that the model made, without the outputs that a rollout repeats."""
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [item for item in items if not item["type"].endswith("_output")]


class Chain:
    """What was sent and answered so far, and the response that the next turn continues."""

    def __init__(self, model: str, instructions: str, **fields: Any) -> None:
        """``fields``: those of every create, such as ``store``."""
        self.id: str | None = None
        self.items: list[Json] = []
        """All items, for clients that send their whole history."""
        self.turns = 0
        self._fields = {"model": model, "instructions": instructions, **fields}
        self._digest = Digest(instructions)

    def copy(self) -> "Chain":
        """The same conversation, to be continued differently."""
        copied = Chain(**self._fields)
        copied.id, copied.items, copied.turns = self.id, [*self.items], self.turns
        copied._digest = copy(self._digest)
        return copied

    def create(self, *items: Json, **fields: Any) -> Json:
        """The fields of a create that adds these items."""
        return {**self._fields, "input": list(items), "previous_response_id": self.id, **fields}

    def add(self, items: Sequence[Json]) -> None:
        """Add items that the server has, or has sent."""
        self._digest.add(items)
        self.items += items

    def took(
        self,
        sent: Sequence[Json],
        events: Sequence[Json],
        *,
        lane: str | None = None,
        needs: Need = "text",
        answer: list[Json] | None = None,
        steered: bool = False,
        continues: str | None = "",
    ) -> Json:
        """Check the events of an answer to these items, and go on from it; return the response.

        ``answer``: its items, if not all of them are new. ``steered``: whether it may have been cut.
        ``continues``: the id that the response names as the one before it, if it is not that of the chain.
        """
        answer = answer_of(events) if answer is None else answer
        self.add(sent)
        expected = Expectation(
            needs=needs,
            previous_response_id=self.id if continues == "" else continues,
            lane=lane,
            digest=str(self._digest),
        )
        faults = (find_faults(list(events), answer, expected) or "").split("; ")
        if steered:
            faults = [fault for fault in faults if fault != _STEERED]
        if any(faults):
            raise Wrong(f"{'; '.join(faults)}: {events}"[:_SHOWN])
        response: Json = events[-1]["response"]
        self._go_on(response, answer)
        return response

    def took_step(self, sent: Sequence[Json], events: Sequence[Json], answer: list[Json]) -> None:
        """Check one step of a rollout. ``events``: those of the response so far."""
        self.add(sent)
        expected = Expectation(needs="call", previous_response_id=self.id, digest=str(self._digest))
        if faults := find_faults(list(events), answer, expected):
            raise Wrong(f"{faults}: {events}"[:_SHOWN])
        self.add(answer)

    def took_whole(self, sent: Sequence[Json], response: Json, *, continues: str | None = "") -> None:
        """Check an answer that came without events, and go on from it."""
        self.add(sent)
        previous = self.id if continues == "" else continues
        found = find_digest(response["output"])
        if response["status"] != "completed" or response["previous_response_id"] != previous:
            raise Wrong(f"not an answer to what continues {previous}: {response}"[:_SHOWN])
        if found != str(self._digest):
            raise Wrong(f"another context was read, digest {found}, not {self._digest}: {response}"[:_SHOWN])
        self._go_on(response, response["output"])

    def _go_on(self, response: Json, answer: Sequence[Json]) -> None:
        self.add(answer)
        self.id = response["id"]
        self.turns += 1
