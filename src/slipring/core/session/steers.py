"""Steers: accepts or refuses the messages that a client adds to a running response, keeps them until a
response contains them, and starts the response that follows.

Each accepted steer has one of two ends: it is committed when a response with its messages in its input is
created, or its input is returned to the client in ``response.steer.failed``. A steered response that waits
for call outputs leaves its steers to the client's continuation.
"""

from msgspec import structs

from slipring.base.errors import ApiError, InvalidPrompt, quoted
from slipring.core.attachments import AttachmentRules
from slipring.core.chain import input_items
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.generation import Models
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.turn.stages import Stages
from slipring.core.turn.steps import steered_ends
from slipring.core.turn.steps.steered_ends import SteerRefused, Steers
from slipring.core.turn.turn import Inserted, Turn
from slipring.protocol.events import Event, SteerErrorCode
from slipring.protocol.items.items import CALL_OF_OUTPUT, Item
from slipring.protocol.live_input import Steer

_ANSWERS = frozenset({*CALL_OF_OUTPUT, "mcp_approval_response"})
"""Items that models see as the output of a call."""


class Successors:
    """The accepted steers of one connection, and the turns that they lead to."""

    __slots__ = ("_charges", "_lanes", "_limits", "_models", "_ports", "_size_bytes", "in_input", "waiting")

    def __init__(self, limits: Limits, ports: Ports, models: Models, charges: Charges, lanes: Lanes) -> None:
        self._charges = charges
        self._lanes = lanes
        self._limits = limits
        self._ports = ports
        self._models = models
        self._size_bytes = 0
        self.waiting: dict[str, Steers] = {}
        """By response id: steers of ended responses that only the client can continue."""
        self.in_input: dict[Turn, Steers] = {}
        """Steers in the input of turns whose responses are not created yet."""

    def steer(self, steer: Steer, cache: ConnectionCache, refusing: ApiError | None) -> Event:
        """Accept or refuse a steer; returns the event that says so. ``refusing``: why no response may
        follow."""
        if (turn := self._lanes.find(steer.target)) is not None:
            return self._steer(steer, turn, refusing)
        refusal = _not_running(steer, cache.find(steer.target))
        return steered_ends.failed_event(steer, refusal, None, self._lanes.lane_of(steer.target, cache))

    def _steer(self, steer: Steer, turn: Turn, refusing: ApiError | None) -> Event:
        after_tokens = self._limits.steer_after_tokens
        steers = turn.steers or Steers(steer.target, turn.asked.lane, turn.output, after_tokens)
        try:
            self._require_steerable(turn, steer, refusing)
            self._require_room(steers, steer)
        except SteerRefused as refusal:
            return steered_ends.failed_event(steer, refusal, turn.output, turn.asked.lane)
        self._size_bytes += steer.size_bytes
        self._charges.take(steers, steer.size_bytes)
        accepted = steers.accept(steer, self._ports.mint("steer"))
        turn.steer(steers)
        return accepted

    def after(
        self, turn: Turn, steers: Steers, state: ResponseState | None, refusing: ApiError | None
    ) -> tuple[list[Event], Turn | None]:
        """Use the steers of an ended turn: returns events about them, or the turn that follows.

        ``state``: the response's state, None if it failed. ``refusing``: why no response may follow.
        """
        if state is None:
            why = "The response has failed."
            return self._fail(steers, "response_not_active", why, is_blocked=turn.is_blocked), None
        if refusing is not None:
            return self._fail_successor(steers, refusing), None
        if input_items.requires_input(state):
            self.waiting[steers.response_id] = steers
            return steers.pending(input_items.required_input(state.output, state.carry)), None
        return [], self._successor(turn, state, steers)

    def add_steers(self, turn: Turn, sent: tuple[Item, ...]) -> tuple[tuple[Item, ...], Inserted]:
        """The input of a turn, with the waiting steers of its parent: after the outputs, which models expect
        right after their calls, and before what the client says next. Warmups leave them waiting."""
        steers = self.in_input.get(turn)
        if steers is None and not turn.asked.request.warms_up:
            steers = self._take(turn)
        if steers is None:
            return sent, Inserted()
        self.in_input[turn] = steers
        at = max((index + 1 for index, item in enumerate(sent) if item.type in _ANSWERS), default=0)
        inserted = Inserted(len(steers.items), at, "previous_response_id")
        return sent[:at] + steers.items + sent[at:], inserted

    def commit(self, turn: Turn) -> None:
        """A response is created: the steers in its input are part of it now."""
        if (steers := self.in_input.pop(turn, None)) is not None:
            self._size_bytes -= steers.size_bytes
            self._charges.hand_over(steers, turn)

    def return_steers(self, turn: Turn, error: ApiError) -> list[Event]:
        """A turn has failed: returns the steers in its input, and those that wait for a continuation of its
        parent, which the cache may have lost with this failure."""
        emitted: list[Event] = []
        for steers in (self.in_input.pop(turn, None), None if turn.asked.follows else self._take(turn)):
            emitted += self._fail_successor(steers, error) if steers is not None else []
        return emitted

    def return_all(self, error: ApiError) -> list[Event]:
        """The connection ends: returns all steers that wait for a continuation."""
        waiting = list(self.waiting.values())
        self.waiting.clear()
        return [event for steers in waiting for event in self._fail_successor(steers, error)]

    def _take(self, turn: Turn) -> Steers | None:
        """Remove and return the waiting steers of a turn's parent, if the turn is on the parent's lane."""
        steers = self.waiting.get(turn.asked.request.previous_response_id or "")
        if steers is None or steers.lane != turn.asked.lane:
            return None
        return self.waiting.pop(steers.response_id)

    def _successor(self, turn: Turn, state: ResponseState, steers: Steers) -> Turn:
        """A turn with the request of the one before it, except for parent and input."""
        asked = structs.replace(
            turn.asked,
            request=structs.replace(turn.asked.request, previous_response_id=state.id),
            size_bytes=steers.size_bytes,
            parent=state,
            steers=steers,
        )
        successor = Turn(asked, self._ports, Stages(self._ports.clock))
        successor.hosted.follow(turn.hosted)
        self.in_input[successor] = steers
        return successor

    def _require_steerable(self, turn: Turn, steer: Steer, refusing: ApiError | None) -> None:
        if steer.error is not None:
            raise SteerRefused("invalid_input", steer.error.message)
        if (reason := _cannot_be_steered(turn)) is not None:
            raise SteerRefused("steering_not_supported", f"This response cannot be steered. {reason}")
        if refusing is not None:
            raise SteerRefused("response_not_active", refusing.message)
        try:
            model = self._models.find(turn.asked.request.model)
            rules = AttachmentRules(model.capabilities, self._limits)
            rules.refuse_unseen(steer.items, reads_documents=self._ports.reads_documents)
        except ApiError as error:
            raise SteerRefused("invalid_input", error.message) from None

    def _require_room(self, steers: Steers, steer: Steer) -> None:
        limits = self._limits
        too_long = self._size_bytes + steer.size_bytes > limits.max_queued_bytes
        if len(steers) >= limits.max_steers or too_long:
            raise SteerRefused("too_many_pending_steers", "Too many steers wait for this response to end.")
        if (error := self._charges.objection(steer.size_bytes)) is not None:
            raise SteerRefused("too_many_pending_steers", error.message)

    def _fail_successor(self, steers: Steers, error: ApiError) -> list[Event]:
        message = f"The response that follows could not be created: {error.message}"
        is_blocked = isinstance(error, InvalidPrompt)
        return self._fail(steers, "successor_creation_failed", message, is_blocked=is_blocked)

    def _fail(
        self, steers: Steers, code: SteerErrorCode, message: str, *, is_blocked: bool = False
    ) -> list[Event]:
        self._size_bytes -= steers.size_bytes
        self._charges.release(steers)
        return steers.failed(code, message, is_blocked=is_blocked)


def _cannot_be_steered(turn: Turn) -> str | None:
    """Why a response refuses steers, as a sentence for the client; None if it accepts them."""
    if turn.asked.request.warms_up:
        return "It is a warmup and generates nothing."
    if turn.asked.detached:
        return "It runs in the background."
    if turn.bound.joined is not None:
        return "It is part of a conversation."
    if turn.planned.compaction is not None or turn.asked.request.context_management:
        return "Its context may be compacted."
    return None


def _not_running(steer: Steer, state: ResponseState | None) -> SteerRefused:
    """The refusal of a steer whose response does not run; ``state``: the response, if it is cached."""
    if steer.error is not None:
        return SteerRefused("invalid_input", steer.error.message)
    if state is None:
        message = f"Response with id {quoted(steer.target)} is not known on this connection."
        return SteerRefused("response_not_found", message)
    if state.response.status == "completed":
        message = "The response has been completed. Continue it instead."
        return SteerRefused("response_already_completed", message)
    return SteerRefused("response_not_active", "The response has ended. Continue it instead.")
