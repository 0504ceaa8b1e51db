"""Turn reports: the stages of a finished turn with their durations, its sizes and token counts.

An extension of the API, sent only to clients that enable it. A report holds ids, sizes and times, never
content.
"""

from itertools import pairwise
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

StageName = Literal[
    "decode",
    "queue",
    "resolve",
    "validate",
    "weigh",
    "compact",
    "check",
    "render",
    "engine_queue",
    "prefill",
    "held",
    "generate",
    "list",
    "tools",
    "client",
    "rollout",
    "store",
    "terminal",
]
OWN_STAGES: tuple[StageName, ...] = ("decode", "resolve", "validate", "render", "store", "terminal")
"""Stages in which slipring itself works. In the others it waits: for the lane, the engine or the client."""


Mark = Literal["fork", "warmup", "steered", "compaction", "rollout", "background"]
"""What distinguishes a turn from an ordinary one: it continues a response of another lane, generates nothing,
was started by a steer, compacted its context, ran several steps, ran without a connection."""


class Stage(Struct, frozen=True, gc=False):
    """One stage of a turn. ``start_ms`` counts from the arrival of the request."""

    name: StageName
    start_ms: float
    duration_ms: float


class TokenCounts(Struct, frozen=True, gc=False):
    """Tokens that an engine processed."""

    rendered: int
    """Tokens rendered for this turn."""
    input: int
    cached: int
    output: int
    reasoning: int = 0
    """Output tokens that are part of the model's reasoning."""


class StepCounts(Struct, frozen=True, gc=False):
    """Tokens of one step of a response that continues after calls."""

    prefilled: int
    """Input tokens that the engine had to process, because it had not processed them before."""
    output: int

    def plus(self, other: "StepCounts") -> "StepCounts":
        return StepCounts(self.prefilled + other.prefilled, self.output + other.output)


class Departure(Struct, frozen=True, gc=False):
    """Where a history departs from an earlier one of the same client."""

    field: str
    """``model``, ``instructions``, ``tools``, or a field of the item. ``memory``: it does not depart, but its
    context is not kept any more."""
    item: int | UnsetType = UNSET
    """The index of the item in ``input``."""
    type: str | UnsetType = UNSET

    @property
    def place(self) -> str:
        """As a field of the request, such as ``input[3].content``."""
        return self.field if self.item is UNSET else f"input[{self.item}].{self.field}"


class TurnReport(Struct, frozen=True, gc=False):
    """How one turn went."""

    status: str
    """The status of the response; ``refused`` if there was none, ``cancelled`` if its client disconnected."""
    request_bytes: int
    stages: list[Stage]
    total_ms: float
    response_id: str | UnsetType = UNSET
    previous_response_id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    input_items: int | UnsetType = UNSET
    recognised_items: int | UnsetType = UNSET
    """Input items that were recognised as a context that the engine had processed before."""
    departed: Departure | UnsetType = UNSET
    """Where the history departs from the one that the client has sent before, if not all of that was
    recognised."""
    send_ms: float | UnsetType = UNSET
    """Time in which generation waited for the client to read."""
    tokens: TokenCounts | UnsetType = UNSET
    fallback: str | UnsetType = UNSET
    """Why the engine rendered the whole context instead of the new items only."""
    dropped_items: int | UnsetType = UNSET
    """Oldest items that were left out so that the rest fits the context window."""
    error_code: str | UnsetType = UNSET
    history_bytes: int | UnsetType = UNSET
    """Bytes of earlier items that the client did not send, because the response continues another one."""
    marks: tuple[Mark, ...] | UnsetType = UNSET
    steps: list[StepCounts] | UnsetType = UNSET
    """Of each step, if the response continued after calls."""
    hosted_calls: int | UnsetType = UNSET
    """Calls of hosted tools that the server ran."""
    input_check_ms: float | UnsetType = UNSET
    """How long the safety check of the input took that took longest. It runs beside the stages, unless there
    is a stage ``check``."""
    flagged_by: tuple[str, ...] | UnsetType = UNSET
    """The safety checks that have flagged something."""
    withheld: dict[str, int] | UnsetType = UNSET
    """By safety check: how many input items it had refused before, so that a placeholder stood for each."""
    safety_id: str | UnsetType = UNSET
    """A digest of the ``safety_identifier`` of the request."""

    @property
    def first_token_ms(self) -> float | None:
        """Time from the arrival of the request until the first token is sent; None if there was none."""
        for stage, following in pairwise(self.stages):
            # If the turn ended within its prefill, no ``generate`` follows.
            if stage.name in ("prefill", "held") and following.name == "generate":
                return stage.start_ms + stage.duration_ms
        return None


def server_timing(stages: list[Stage]) -> str:
    """Format stages as the value of a ``Server-Timing`` header."""
    return ", ".join(f"{stage.name};dur={stage.duration_ms:g}" for stage in stages)
