"""The outputs of tools that still run: collects their pieces and decides when the engine prefills them.

The pieces are hints. What a tool has written enters the context only with the item that the client sends when
the tool has ended; that item is validated and rendered as if there had been no pieces. Output past the bound
is therefore no error: it only has no effect.

For each response there is one prefill at a time. Pieces that arrive meanwhile are merged into the next one.
The outputs are prefilled in the order of their calls: the first one that still grows is the last one that is
prefilled, because the tokens of the others come after it.
"""

from collections.abc import Mapping

from msgspec import UNSET, structs

from slipring.core.chain import input_items
from slipring.core.chain.state import OpenCall
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.generation import Job, Models, Prefill
from slipring.core.limits import Limits
from slipring.core.session.actions import Action, EndPrefill, Send, StartPrefill
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.turn.foreseen_job import foreseen_job
from slipring.core.turn.steps import pauses
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError, quoted
from slipring.protocol import items, wire
from slipring.protocol.events import Event, ToolOutputErrorBody, ToolOutputErrorCode, ToolOutputFailed
from slipring.protocol.items import Item
from slipring.protocol.tool_output import ToolOutputPiece

_LEAST_BYTES = 64
_GROWTH = 64
"""A prefill begins when the outputs have grown by a 64th: rendering them again and again takes time in
proportion to their final length."""
_OUTPUT_OF_CALL = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""The calls whose output is a text."""


class PieceRefused(Exception):
    """A piece is not accepted; ``body`` is the error sent to the client."""

    def __init__(self, code: ToolOutputErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.body = ToolOutputErrorBody(code, message, param)


class _Growth:
    """The outputs so far of the open calls of one response."""

    __slots__ = (
        "_ended",
        "_texts",
        "done_tokens",
        "has_failed",
        "is_due",
        "running",
        "seen_bytes",
        "size_bytes",
    )

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._ended: set[str] = set()
        self.size_bytes = 0
        self.seen_bytes = 0
        """Size at the last prefill."""
        self.is_due = False
        """Whether enough is new for another prefill."""
        self.running: StartPrefill | None = None
        self.done_tokens = 0
        self.has_failed = False

    def add(self, piece: ToolOutputPiece, size_bytes: int) -> None:
        """Add a piece of this size."""
        self._texts.setdefault(piece.call_id, []).append(piece.delta)
        self.size_bytes += size_bytes
        new = self.size_bytes - self.seen_bytes
        self.is_due = self.is_due or new >= max(_LEAST_BYTES, self.size_bytes // _GROWTH)

    def end(self, call_id: str) -> None:
        """The tool of a call has ended."""
        self._texts.setdefault(call_id, [])
        self._ended.add(call_id)
        self.is_due = True

    def items(self, open_calls: Mapping[str, OpenCall]) -> tuple[Item, ...]:
        """The outputs in the order of their calls, up to the first one that may still grow."""
        found = []
        for call_id, call in open_calls.items():
            if call_id in self._texts:
                text = "".join(self._texts[call_id])
                self._texts[call_id] = [text]
                kind = _OUTPUT_OF_CALL[call.type]
                found.append(wire.raw({"type": kind, "call_id": call_id, "output": text}))
                if call_id not in self._ended:
                    break
            elif call.required:
                break
        return items.read_items(found)


class GrowingOutputs:
    """The growing outputs of one connection, by response."""

    __slots__ = ("_charges", "_growths", "_lanes", "_limits", "_models", "_tenant", "is_on")

    def __init__(self, tenant: str, lanes: Lanes, limits: Limits, charges: Charges, models: Models) -> None:
        self.is_on = True
        """Whether prefills may begin."""
        self._tenant = tenant
        self._lanes = lanes
        self._limits = limits
        self._charges = charges
        self._models = models
        self._growths: dict[str, _Growth] = {}

    def take(self, piece: ToolOutputPiece, cache: ConnectionCache) -> list[Action]:
        """Handle a piece: a prefill may begin, or the piece is refused."""
        turn = self._lanes.find(piece.target)
        try:
            self._require_open(piece, turn, cache)
        except PieceRefused as refusal:
            return [Send([_failed_event(piece, refusal, turn, cache)])]
        ended = [] if piece.target in self._growths else self._end_unreachable(cache)
        growth = self._growths.setdefault(piece.target, _Growth())
        size_bytes = len(piece.delta.encode())
        room = self._limits.max_tool_output_bytes - growth.size_bytes
        if size_bytes > room or self._charges.objection(size_bytes) is not None:
            growth.has_failed = True  # what follows cannot be appended to what came before
            return ended
        self._charges.take(growth, size_bytes)
        if piece.is_last:
            growth.end(piece.call_id)
        else:
            growth.add(piece, size_bytes)
        return [*ended, *self.advance(piece.target, cache)]

    def result(self, turn: Turn, cache: ConnectionCache) -> list[Action]:
        """A hosted call has ended while others of its step still run: its result can be prefilled."""
        if pauses.foreseen_job(turn) is None:
            return []
        response_id = turn.output.response_id
        self._growths.setdefault(response_id, _Growth()).is_due = True
        return self.advance(response_id, cache)

    def advance(self, response_id: str, cache: ConnectionCache) -> list[Action]:
        """Begin a prefill if the outputs of a response have grown enough and the response has ended or
        paused."""
        growth = self._growths.get(response_id)
        if growth is None or growth.running is not None or growth.has_failed or not growth.is_due:
            return []
        if not self.is_on:
            return []
        try:
            foreseen = self._foreseen(response_id, growth, cache)
        except ApiError:
            growth.has_failed = True  # its model is not served any more
            return []
        if foreseen is None:
            return []
        growth.is_due, growth.seen_bytes = False, growth.size_bytes
        growth.running = StartPrefill(response_id, Prefill(foreseen, "output", growth.done_tokens))
        return [growth.running]

    def prefilled(self, ended: StartPrefill, tokens: int | None, cache: ConnectionCache) -> list[Action]:
        """The engine has prefilled so many tokens; None: it failed. The next prefill may begin."""
        growth = self._growths.get(ended.response_id)
        if growth is None or growth.running is not ended:
            return []
        growth.running = None
        if tokens is None:
            growth.has_failed = True
        else:
            growth.done_tokens = max(tokens, growth.done_tokens)
        return self.advance(ended.response_id, cache)

    def end(self, response_id: str | None) -> list[Action]:
        """The response is continued, or has failed: forget its outputs."""
        growth = self._growths.pop(response_id, None) if response_id is not None else None
        if growth is None:
            return []
        self._charges.release(growth)
        return [] if growth.running is None else [EndPrefill(growth.running.response_id)]

    def end_all(self) -> list[Action]:
        """The connection is closed."""
        return [action for response_id in list(self._growths) for action in self.end(response_id)]

    def _end_unreachable(self, cache: ConnectionCache) -> list[Action]:
        """Forget the outputs of responses that can have no more pieces: each lane has one that can."""
        reachable = {
            response_id
            for response_id in self._growths
            if self._lanes.find(response_id) or (response_id in cache and cache.is_latest(response_id))
        }
        return [action for each in self._growths.keys() - reachable for action in self.end(each)]

    def _foreseen(self, response_id: str, growth: _Growth, cache: ConnectionCache) -> Job | None:
        """The job that continues a response with its outputs; None as long as that is not possible."""
        turn = self._lanes.find(response_id)
        if turn is not None:
            foreseen = pauses.foreseen_job(turn)
            if foreseen is None or turn.is_calling:
                return foreseen
            job, open_calls = foreseen, turn.rollout.open_calls if turn.rollout is not None else {}
        elif (state := cache.find(response_id)) is not None:
            job, open_calls = foreseen_job(state, self._tenant, self._models), state.carry.open_calls
        else:
            return None
        outputs = growth.items(open_calls)
        return structs.replace(job, input=job.input + outputs) if outputs else None

    def _require_open(self, piece: ToolOutputPiece, turn: Turn | None, cache: ConnectionCache) -> None:
        """Raise ``PieceRefused`` unless the piece belongs to a call that waits for its output."""
        if piece.error is not None:
            raise PieceRefused("invalid_input", piece.error.message, piece.error.param)
        open_calls = self._open_calls(piece.target, turn, cache)
        if open_calls is None:
            message = f"Response with id {quoted(piece.target)} is not known on this connection."
            raise PieceRefused("response_not_found", message, "response_id")
        call = open_calls.get(piece.call_id)
        if call is None:
            message = f"No call with id {quoted(piece.call_id)} waits for its output."
            raise PieceRefused("call_not_open", message, "call_id")
        if call.type not in _OUTPUT_OF_CALL:
            message = "Only the outputs of function calls and custom tool calls can be sent in pieces."
            raise PieceRefused("invalid_input", message, "call_id")

    def _open_calls(
        self, response_id: str, turn: Turn | None, cache: ConnectionCache
    ) -> Mapping[str, OpenCall] | None:
        """The calls of a response that wait for their outputs; None if the response is not known."""
        if turn is not None:
            return turn.open_calls
        state = cache.find(response_id)
        if state is None:
            return None
        is_continued = not cache.is_latest(response_id) or self._lanes.is_busy(cache.lane_of(response_id))
        return input_items.NOTHING.open_calls if is_continued else state.carry.open_calls


def _failed_event(
    piece: ToolOutputPiece, refusal: PieceRefused, turn: Turn | None, cache: ConnectionCache
) -> Event:
    """The event that refuses a piece. Numbered within the response if it runs."""
    lane = cache.lane_of(piece.target) if turn is None and piece.target in cache else None
    return ToolOutputFailed(
        sequence_number=turn.output.number() if turn is not None else 0,
        stream_id=turn.output.stream_id if turn is not None else UNSET if lane is None else lane,
        response_id=piece.target,
        call_id=piece.call_id,
        error=refusal.body,
    )
