"""A plan: what a loop tells the model, turn by turn, and what it needs to hear.

Items are as the API takes them. Call ids are not known before the calls are made, so a plan holds the texts
of outputs and not their items.
"""

from typing import Any, Literal

from msgspec import Struct

from slipring.bench.results import Workload

Item = dict[str, Any]
Need = Literal["call", "text"]

_UNRECORDED = "There is no output for this call."


class Step(Struct, frozen=True, kw_only=True):
    """One turn."""

    messages: list[Item] = []
    """Sent as they are, after the outputs."""
    outputs: list[str] = []
    """Of the calls that the turn before has made, in their order."""
    needs: Need = "text"
    """Without which the next turn cannot be had."""

    def input(self, calls: list[Item]) -> list[Item]:
        """What is new in this turn, after an answer that made these calls."""
        return [*answered(calls, self.outputs), *self.messages]


class Plan(Struct, frozen=True, kw_only=True):
    """A whole loop."""

    workload: Workload
    instructions: str
    steps: list[Step]
    tools: list[Item] = []
    settings: dict[str, Any] = {}
    """Other fields of every create."""
    uncounted: int = 0
    """Turns at the beginning that only build up a history, and are not measured."""
    outputs_before: int = 0
    """Outputs of tools in what the first turn brings along."""
    forces_tools: bool = False
    """Whether calls come in an order that no model would find by itself."""

    @property
    def calls(self) -> int:
        return sum(step.needs == "call" for step in self.steps)

    @property
    def mixes_outputs(self) -> bool:
        """Whether outputs of tools come together with anything else."""
        return any(step.outputs and step.messages for step in self.steps)


def answered(calls: list[Item], outputs: list[str]) -> list[Item]:
    """Outputs for calls, in order: no text is lost to fewer calls, and no call goes without an output."""
    texts = list(outputs)
    if len(texts) > len(calls) > 0:
        texts = [*texts[: len(calls) - 1], "\n".join(texts[len(calls) - 1 :])]
    texts += [_UNRECORDED] * (len(calls) - len(texts))
    return [
        {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": text}
        for call, text in zip(calls, texts, strict=False)
    ]


def message(text: str, role: str = "user") -> Item:
    return {"type": "message", "role": role, "content": text}
