"""A plan: what a loop sends in each turn, and what kind of answer it needs to continue.

Items are in the form that the API accepts. Call ids are known only once the model has made its calls, so a
plan holds the texts of tool outputs and not their items.
"""

from typing import Any, Literal

from msgspec import Struct

from slipring.commands.bench.results import Workload

Item = dict[str, Any]
Need = Literal["call", "text"]

_UNRECORDED = "There is no output for this call."


class Head(Struct, frozen=True, kw_only=True):
    """What a request contains beside its items."""

    instructions: str = ""
    tools: list[Item] = []
    settings: dict[str, Any] = {}
    """Further fields of the ``response.create``."""


class PlanStep(Struct, frozen=True, kw_only=True):
    """One turn."""

    messages: list[Item] = []
    """Items sent after the tool outputs."""
    outputs: list[str] = []
    """Texts of the tool outputs, in the order of the previous turn's calls."""
    needs: Need = "text"
    """The kind of answer that the next turn requires."""
    continues: int | None = None
    """Index of the step whose answer it continues; None: that of the step before."""
    begins: bool = False
    """Whether it begins a conversation of its own. The first step always does."""
    head: Head | None = None
    """None: that of the plan."""
    pause_ms: float = 0.0
    """How long the client's tools took before this turn, in a recording."""

    def input(self, calls: list[Item]) -> list[Item]:
        """The new items of this turn, given the calls of the previous answer."""
        return [*output_items(calls, self.outputs), *self.messages]


class Plan(Struct, frozen=True, kw_only=True):
    """A whole loop."""

    workload: Workload
    instructions: str
    steps: list[PlanStep]
    tools: list[Item] = []
    settings: dict[str, Any] = {}
    """Further fields of a ``response.create``, for all steps that have no head of their own."""
    uncounted: int = 0
    """Turns at the start that only build up history and are not measured."""
    outputs_before: int = 0
    """Tool outputs in the history that the first turn sends."""
    forces_tools: bool = False
    """Whether ``tool_choice`` must force each call, because no model would make them in this order."""

    def head_of(self, step: PlanStep) -> Head:
        return step.head or Head(instructions=self.instructions, tools=self.tools, settings=self.settings)

    @property
    def has_tools(self) -> bool:
        return any(self.head_of(step).tools for step in self.steps)

    @property
    def calls(self) -> int:
        return sum(step.needs == "call" for step in self.steps)

    @property
    def mixes_outputs(self) -> bool:
        """Whether a turn sends other items together with tool outputs."""
        return any(step.outputs and step.messages for step in self.steps)


def output_items(calls: list[Item], outputs: list[str]) -> list[Item]:
    """Output items for calls, in order. With fewer calls than texts, the last call gets the remaining texts
    joined; with more, the remaining calls get a placeholder."""
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


def text_of(content: object) -> str:
    """The concatenated text parts of a ``content`` or ``output`` value."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
