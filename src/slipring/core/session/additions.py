"""What a client adds to responses that are being made: which one is meant, and whether it takes it.

Such a frame is no turn and waits in no lane: it goes with the response that it names, or is given back.
"""

from msgspec import Struct

from slipring.core.chain import lineage
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.limits import Limits
from slipring.core.session import client_events
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.session.succession import Succession
from slipring.core.session.turn_setup import intake_of
from slipring.core.turn import rollout, steering
from slipring.core.turn.phase import Phase
from slipring.core.turn.rollout import Refusal
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError
from slipring.protocol.events import Event
from slipring.protocol.intake import Compilable


class Additions(Struct, frozen=True):
    """The way of one connection with them."""

    lanes: Lanes
    limits: Limits
    succession: Succession
    charges: Charges

    def steer(self, asked: client_events.Steer, cache: ConnectionCache, refusing: ApiError | None) -> Event:
        """``refusing``: why nothing can follow any more."""
        if (turn := self.lanes.making(asked.target)) is not None:
            return self.succession.steer(asked, turn, refusing)
        state = cache.find(asked.target)
        lane = cache.lane_of(asked.target) if state is not None else None
        return steering.refused(asked, steering.objection(asked, state), None, lane)

    def defined_by(self, asked: client_events.Append) -> list[Compilable]:
        """What comes with something that a rollout may take, and has to be compiled first. Raises what is
        wrong with it."""
        turn = self.lanes.making(asked.target)
        if asked.error is not None or turn is None or turn.rollout is None:
            return []
        intake = intake_of(self.limits)
        lineage.take_definitions(asked.items, intake)
        return intake.grammars

    def append(
        self, asked: client_events.Append, cache: ConnectionCache, now: float
    ) -> tuple[list[Event], Turn | None]:
        """What is told about it, and the turn that goes on now, if one does."""
        turn = self.lanes.making(asked.target)
        try:
            if asked.error is not None:
                raise Refusal("invalid_input", asked.error.message, asked.error.param)
            if turn is None:
                raise rollout.objection(asked, cache.find(asked.target))
            return self._append(asked, turn, now), turn if turn.may_resume else None
        except Refusal as refusal:
            output = turn.output if turn is not None else None
            lane = cache.lane_of(asked.target) if turn is None and asked.target in cache else None
            return [rollout.refused(asked, refusal, output, lane)], None

    def _append(self, asked: client_events.Append, turn: Turn, now: float) -> list[Event]:
        if turn.rollout is None:
            raise Refusal("append_not_supported", "This response is no rollout: nothing can be added to it.")
        if turn.phase is Phase.SAVING:
            said = "The response has been completed. Continue it instead."
            raise Refusal("response_already_completed", said)
        self._require_room(asked)
        told = turn.append(asked, now + self.limits.rollout_wait_s)
        self.charges.take(turn, asked.size_bytes)
        return told

    def _require_room(self, asked: client_events.Append) -> None:
        rollouts = [turn.rollout for turn in self.lanes.running() if turn.rollout is not None]
        held, new = sum(each.held_bytes for each in rollouts), asked.size_bytes
        whole = held + sum(each.size_bytes for each in rollouts)
        if held + new > self.limits.max_queued_bytes or whole + new > self.limits.connection_cache_bytes:
            said = "Too much is held for rollouts on this connection already."
            raise Refusal("too_much_pending_input", said)
        if (error := self.charges.objection(asked.size_bytes)) is not None:
            raise Refusal("too_much_pending_input", error.message)
