"""What follows on responses that were steered, on one connection.

Owns what has been accepted and is no part of a response yet: it is committed once, by the
``response.created`` of a response that has it in its input, or given back in ``response.steer.failed``. Knows
nothing of lanes and of what a connection remembers: that is the session.
"""

from msgspec import structs

from slipring.core.chain.state import ResponseState
from slipring.core.generation import Models
from slipring.core.limits import Limits
from slipring.core.ports import Means
from slipring.core.session import client_events
from slipring.core.session.request_charges import Charges
from slipring.core.turn import request_validation, steering
from slipring.core.turn.stages import Stages
from slipring.core.turn.steering import Refusal, Steers
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError
from slipring.protocol.events import Event, SteerErrorCode


class Succession:
    """All that is queued on one connection."""

    __slots__ = ("_charges", "_limits", "_means", "_models", "_size_bytes", "_waiting")

    def __init__(self, limits: Limits, means: Means, models: Models, charges: Charges) -> None:
        self._charges = charges
        self._limits = limits
        self._means = means
        self._models = models
        self._size_bytes = 0
        self._waiting: dict[str, Steers] = {}
        """By response: those that go on only with what the client owes them."""

    def steer(self, asked: client_events.Steer, turn: Turn, refusing: ApiError | None) -> Event:
        """Add something to a response that is being made; ``refusing``: why nothing can follow any more."""
        after_tokens = self._limits.steer_after_tokens
        steers = turn.steers or Steers(asked.target, turn.lane, turn.output, after_tokens)
        try:
            self._require_steerable(turn, asked, refusing)
            self._require_room(steers, asked)
        except Refusal as refusal:
            return steering.refused(asked, refusal, turn.output, turn.lane)
        self._size_bytes += asked.size_bytes
        self._charges.take(steers, asked.size_bytes)
        told = steers.accept(asked, self._means.mint("steer"))
        turn.steer(steers)
        return told

    def after(
        self, turn: Turn, state: ResponseState | None, refusing: ApiError | None
    ) -> tuple[list[Event], Turn | None]:
        """What becomes of what was added to a response that is over: events, or the turn that takes it.

        ``state`` is what the response has left, unless it failed.
        """
        steers, turn.steers = turn.steers, None
        if steers is None:
            return [], None
        if state is None:
            return self._fail(steers, "response_not_active", "The response has failed."), None
        if refusing is not None:
            return self._give_back(steers, refusing), None
        if steering.requires_input(state):
            self._waiting[steers.response_id] = steers
            return steers.pending(steering.required_input(state.output, state.carry)), None
        return [], self._successor(turn, state, steers)

    def lead(self, turn: Turn) -> None:
        """Put what was added to a turn's parent before its own input. A warmup leaves it where it is."""
        if turn.steered_by is None and not turn.request.warms_up:
            turn.steered_by = self._take(turn)
        if turn.steered_by is not None:
            turn.input = turn.steered_by.items + turn.input

    def commit(self, turn: Turn) -> None:
        """A response exists, and with it what it began with."""
        if turn.steered_by is not None:
            self._size_bytes -= turn.steered_by.size_bytes
            self._charges.hand_over(turn.steered_by, turn)
            turn.steered_by = None

    def give_back(self, turn: Turn, error: ApiError) -> list[Event]:
        """A turn has failed: what it would have begun with, and what waits for a continuation of its parent,
        which nobody can be sure to find any more."""
        told: list[Event] = []
        for steers in (turn.steered_by, None if turn.follows else self._take(turn)):
            told += self._give_back(steers, error) if steers is not None else []
        turn.steered_by = None
        return told

    def give_all_back(self, error: ApiError) -> list[Event]:
        """No continuation will come any more."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return [told for steers in waiting for told in self._give_back(steers, error)]

    def _take(self, turn: Turn) -> Steers | None:
        """What waits for a continuation of a turn's parent, on that one's own lane."""
        steers = self._waiting.get(turn.request.previous_response_id or "")
        if steers is None or steers.lane != turn.lane:
            return None
        return self._waiting.pop(steers.response_id)

    def _successor(self, turn: Turn, state: ResponseState, steers: Steers) -> Turn:
        """The turn that nobody asks for: as the one before it was asked for, but for its input."""
        successor = Turn(
            structs.replace(turn.request, previous_response_id=state.id),
            tenant=turn.tenant,
            lane=turn.lane,
            size_bytes=steers.size_bytes,
            means=self._means,
            stages=Stages(self._means.clock),
        )
        successor.follows, successor.steered_by, successor.parent = True, steers, state
        return successor

    def _require_steerable(self, turn: Turn, asked: client_events.Steer, refusing: ApiError | None) -> None:
        if asked.error is not None:
            raise Refusal("invalid_input", asked.error.message)
        if (reason := turn.cannot_be_steered) is not None:
            raise Refusal("steering_not_supported", f"This response cannot be steered. {reason}")
        if refusing is not None:
            raise Refusal("response_not_active", refusing.message)
        try:
            request_validation.refuse_unseen_content(
                asked.items, self._models.find(turn.request.model).capabilities
            )
        except ApiError as error:
            raise Refusal("invalid_input", error.message) from None

    def _require_room(self, steers: Steers, asked: client_events.Steer) -> None:
        limits = self._limits
        too_long = self._size_bytes + asked.size_bytes > limits.max_queued_bytes
        if len(steers) >= limits.max_steers or too_long:
            raise Refusal("too_many_pending_steers", "Too much waits for the end of this response already.")
        if (error := self._charges.objection(asked.size_bytes)) is not None:
            raise Refusal("too_many_pending_steers", error.message)

    def _give_back(self, steers: Steers, error: ApiError) -> list[Event]:
        said = f"No response could be made of it: {error.message}"
        return self._fail(steers, "successor_creation_failed", said)

    def _fail(self, steers: Steers, code: SteerErrorCode, message: str) -> list[Event]:
        self._size_bytes -= steers.size_bytes
        self._charges.release(steers)
        return steers.failed(code, message)
