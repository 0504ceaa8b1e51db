"""Accepts or refuses what a client appends to a running response: outputs of tool calls, all or none.

Such an event is not a turn and waits in no lane: the running turn takes its input, or the event is refused
and its input returned to the client.
"""

from msgspec import Struct

from slipring.base.errors import ApiError, quoted
from slipring.core.chain import input_items
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.limits import Limits
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.turn.request_validation import new_definitions
from slipring.core.turn.steps import between_steps, rollout
from slipring.core.turn.steps.rollout import AppendRefused
from slipring.core.turn.turn import Turn
from slipring.protocol.events import Event
from slipring.protocol.items.items import MOST_ITEMS
from slipring.protocol.live_input import Append
from slipring.protocol.tools.grammars_and_schemas import Compilable


class Appends(Struct, frozen=True):
    """Handles the append events of one connection."""

    lanes: Lanes
    limits: Limits
    charges: Charges
    ignored_tools: frozenset[str]

    def grammars_in(self, append: Append) -> list[Compilable]:
        """The grammars to compile before an append is handled. Raises ``ApiError`` for invalid tools."""
        turn = self.lanes.find(append.target)
        if append.error is not None or turn is None or turn.planned.rollout is None:
            return []
        definitions = new_definitions(self.limits, self.ignored_tools)
        input_items.take_definitions(append.items, definitions)
        return definitions.grammars

    def append(self, append: Append, cache: ConnectionCache, now: float) -> list[Event]:
        """Handle an append; returns the events that answer it."""
        turn = self.lanes.find(append.target)
        try:
            if append.error is not None:
                raise AppendRefused("invalid_input", append.error.message, append.error.param)
            if turn is None:
                raise _not_running(append, cache.find(append.target))
            return self._append(append, turn, now)
        except AppendRefused as refusal:
            output = turn.output if turn is not None else None
            lane = self.lanes.lane_of(append.target, cache)
            return [rollout.failed_event(append, refusal, output, lane)]

    def _append(self, append: Append, turn: Turn, now: float) -> list[Event]:
        if turn.is_listing and turn.asked.request.rollout:
            message = "The response waits for lists of tools, and for no output of a call."
            raise AppendRefused("invalid_input", message)
        if turn.planned.rollout is None:
            raise AppendRefused("append_not_supported", "This response is not a rollout.")
        if turn.is_closed:
            message = "The response has been completed. Continue it instead."
            raise AppendRefused("response_already_completed", message)
        self._require_room(append)
        carry = _carry_with(append, turn)
        emitted = between_steps.append(turn, append, carry, now + self.limits.rollout_wait_s)
        self.charges.take(turn, append.size_bytes)
        return emitted

    def _require_room(self, append: Append) -> None:
        rollouts = [each for turn in self.lanes.running() if (each := turn.planned.rollout) is not None]
        held, new = sum(each.held_bytes for each in rollouts), append.size_bytes
        total = held + sum(each.size_bytes for each in rollouts)
        if held + new > self.limits.max_queued_bytes or total + new > self.limits.connection_cache_bytes:
            message = "The rollouts on this connection hold too much input already."
            raise AppendRefused("too_much_pending_input", message)
        if (error := self.charges.objection(append.size_bytes)) is not None:
            raise AppendRefused("too_much_pending_input", error.message)


def _not_running(append: Append, state: ResponseState | None) -> AppendRefused:
    """The refusal of an append whose response does not run; ``state``: the response, if it is cached."""
    if state is None:
        message = f"Response with id {quoted(append.target)} is not known on this connection."
        return AppendRefused("response_not_found", message)
    message = f"Response {quoted(append.target)} has already completed. Continue it instead."
    return AppendRefused("response_already_completed", message)


def _carry_with(append: Append, turn: Turn) -> Carry:
    """The carry of the context with an append. Raises ``AppendRefused`` if any of its outputs is refused."""
    prepared, steps = turn.prepared, turn.planned.steps
    assert prepared is not None
    assert steps is not None
    turn.observe()
    if len(turn.output.finished) + len(append.items) > MOST_ITEMS:
        raise AppendRefused("too_much_pending_input", "The response has too many items already.")
    rules = prepared.draft.attachment_rules
    try:
        carry = input_items.join(prepared.carry.current, append.items, complete=False)
        if carry.has_attachments:
            rules.refuse_unread(append.items)
            rules.refuse_unseen(append.items)
            rules.refuse_context(carry)
        steps.offer(carry)
    except ApiError as error:
        raise AppendRefused("invalid_input", error.message, error.param) from None
    return carry
