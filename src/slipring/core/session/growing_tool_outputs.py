"""The outputs of tools that still run: collects the pieces that a client streams, and decides when enough is
new for the engine to read them ahead. Each piece also tells the engines that the tool still runs, whether it
is read ahead or not.

The pieces are hints. What a tool has written enters the context only with the item that the client sends when
the tool has ended; that item is validated and rendered as if there had been no pieces. Output past the bound
is therefore no error: it only has no effect.

For each response there is one prefill at a time. Pieces that arrive meanwhile are merged into the next one.
The outputs are prefilled in the order of their calls: the first one that still grows is the last one that is
prefilled, because the tokens of the others come after it.
"""

from collections.abc import Mapping

from msgspec import UNSET, Raw, structs

from slipring.base.errors import ApiError, quoted
from slipring.core.chain import input_items
from slipring.core.chain.state import OpenCall
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.policies import Policies
from slipring.core.generation import Job, Models, Prefill
from slipring.core.limits import Limits
from slipring.core.session import foreseen_jobs
from slipring.core.session.actions import Action, EndPrefill, ReportOutput, Send, StartPrefill
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.turn.steps import between_steps
from slipring.core.turn.turn import Turn
from slipring.protocol import wire
from slipring.protocol.events import Event, ToolOutputErrorBody, ToolOutputErrorCode, ToolOutputFailed
from slipring.protocol.items import items
from slipring.protocol.items.items import Item
from slipring.protocol.live_input import ToolOutputPiece

_LEAST_BYTES = 64
_GROWTH = 64
"""A prefill begins when the outputs have grown by a 64th: rendering them again and again takes time in
proportion to their final length."""
_OUTPUT_OF_CALL = {
    "function_call": b"function_call_output",
    "custom_tool_call": b"custom_tool_call_output",
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
        "is_full",
        "running",
        "seen_bytes",
        "seen_calls",
        "size_bytes",
    )

    def __init__(self) -> None:
        self._texts: dict[str, bytearray] = {}
        """By call, as the content of a JSON string: pieces may be very short, and most of the memory that a
        prefill takes is its items."""
        self._ended: set[str] = set()
        self.size_bytes = 0
        self.seen_bytes = 0
        """Size at the last prefill."""
        self.seen_calls: Mapping[str, OpenCall] | None = None
        """The calls that waited for their outputs at the last prefill; None if there was none. Empty if it
        had results of hosted calls only."""
        self.is_due = False
        """Whether enough is new for another prefill."""
        self.is_full = False
        """Whether a piece did not fit: what follows cannot be appended to what came before."""
        self.has_failed = False
        """Whether a prefill has failed: there will be no other."""
        self.running: StartPrefill | None = None
        self.done_tokens = 0

    def accepts(self, call_id: str) -> bool:
        """Whether a further piece of a call's output has an effect."""
        return not (self.is_full or self.has_failed or call_id in self._ended)

    def add(self, call_id: str, delta: bytes) -> None:
        """Add a piece, as the content of a JSON string."""
        self._texts.setdefault(call_id, bytearray()).extend(delta)
        self.size_bytes += len(delta)
        new = self.size_bytes - self.seen_bytes
        self.is_due = self.is_due or new >= max(_LEAST_BYTES, self.size_bytes // _GROWTH)

    def end(self, call_id: str) -> None:
        """The tool of a call has ended."""
        self._texts.setdefault(call_id, bytearray())
        self._ended.add(call_id)
        self.is_due = True

    def fill(self) -> None:
        """Accept no more pieces, and prefill those that were accepted."""
        self.is_full = True
        self.is_due = self.is_due or self.size_bytes > self.seen_bytes

    def items(self, open_calls: Mapping[str, OpenCall]) -> tuple[Item, ...]:
        """The outputs in the order of their calls, up to the first one that may still grow."""
        found = []
        for call_id, call in open_calls.items():
            if call_id in self._texts:
                head = b'{"type":"%b","call_id":%b' % (_OUTPUT_OF_CALL[call.type], wire.encode(call_id))
                found.append(Raw(b"".join((head, b',"output":"', self._texts[call_id], b'"}'))))
                if call_id not in self._ended:
                    break
            elif call.required:
                break
        return items.read_items(found)


class GrowingOutputs:
    """The growing outputs of one connection, by response."""

    __slots__ = ("_charges", "_is_on", "_lanes", "_limits", "_models", "_tenant", "growing")

    def __init__(
        self,
        tenant: str,
        lanes: Lanes,
        limits: Limits,
        charges: Charges,
        models: Models,
        policies: Policies,
    ) -> None:
        # An engine that must see nothing before it was inspected is not given outputs ahead of their turn.
        self._is_on = not any(check.before for check in policies.checks.values())
        self._tenant = tenant
        self._lanes = lanes
        self._limits = limits
        self._charges = charges
        self._models = models
        self.growing: dict[str, _Growth] = {}
        """By response id."""

    def take(self, piece: ToolOutputPiece, cache: ConnectionCache) -> list[Action]:
        """Handle a piece: a prefill may begin, or the piece is refused."""
        turn = self._lanes.find(piece.target)
        try:
            self._require_open(piece, turn, cache)
        except PieceRefused as refusal:
            lane = self._lanes.lane_of(piece.target, cache)
            return [Send([_failed_event(piece, refusal, turn, lane)]), *self.end_unreachable(cache)]
        actions: list[Action] = [] if piece.is_last else [ReportOutput(piece.target)]
        if not self._is_on:
            return actions
        if piece.target not in self.growing:
            actions += self.end_unreachable(cache)
        growth = self.growing.setdefault(piece.target, _Growth())
        if not growth.accepts(piece.call_id):
            return actions
        if piece.is_last:
            growth.end(piece.call_id)
            return [*actions, *self.advance(piece.target, cache)]
        delta = wire.encode(piece.delta)[1:-1]
        room = self._limits.max_tool_output_bytes - growth.size_bytes
        if len(delta) > room or self._charges.objection(len(delta)) is not None:
            growth.fill()
        else:
            self._charges.take(growth, len(delta))
            growth.add(piece.call_id, delta)
        return [*actions, *self.advance(piece.target, cache)]

    def result(self, turn: Turn, cache: ConnectionCache) -> list[Action]:
        """A hosted call has ended while others of its step still run: its result can be prefilled."""
        if not self._is_on or between_steps.foreseen_job(turn) is None:
            return []
        response_id = turn.output.response_id
        self.growing.setdefault(response_id, _Growth()).is_due = True
        return self.advance(response_id, cache)

    def advance(self, response_id: str, cache: ConnectionCache) -> list[Action]:
        """Begin a prefill if the response has ended or paused and its outputs have grown enough since the
        last one, or others come before them in the context now."""
        growth = self.growing.get(response_id)
        if growth is None or growth.running is not None or growth.has_failed:
            return []
        turn = self._lanes.find(response_id)
        if not growth.is_due and not _has_moved_on(growth, turn):
            return []
        try:
            foreseen, seen_calls = self._foreseen(response_id, growth, turn, cache)
        except ApiError:
            self._fail(response_id)  # its model is not served any more
            return []
        if foreseen is None:
            return []
        growth.is_due, growth.seen_bytes, growth.seen_calls = False, growth.size_bytes, seen_calls
        growth.running = StartPrefill(response_id, Prefill(foreseen, "output", growth.done_tokens))
        return [growth.running]

    def prefilled(self, ended: StartPrefill, tokens: int | None, cache: ConnectionCache) -> list[Action]:
        """The engine has prefilled so many tokens; None: it failed. The next prefill may begin."""
        growth = self.growing.get(ended.response_id)
        if growth is None or growth.running is not ended:
            return []
        growth.running = None
        if tokens is None:
            self._fail(ended.response_id)
            return []
        growth.done_tokens = max(tokens, growth.done_tokens)
        return [*self.end_unreachable(cache), *self.advance(ended.response_id, cache)]

    def end(self, response_id: str | None) -> list[Action]:
        """The response is continued, or has failed: forget its outputs."""
        growth = self.growing.pop(response_id, None) if response_id is not None else None
        if growth is None:
            return []
        self._charges.release(growth)
        return [] if growth.running is None else [EndPrefill(growth.running.response_id)]

    def end_unreachable(self, cache: ConnectionCache) -> list[Action]:
        """Forget the outputs of responses that can have no more pieces: each lane has one that can."""
        gone = [each for each in self.growing if not self._is_reachable(each, cache)]
        return [action for response_id in gone for action in self.end(response_id)]

    def end_all(self) -> list[Action]:
        """The connection is closed."""
        return [action for response_id in list(self.growing) for action in self.end(response_id)]

    def _is_reachable(self, response_id: str, cache: ConnectionCache) -> bool:
        is_latest = response_id in cache and cache.is_latest(response_id)
        return is_latest or self._lanes.find(response_id) is not None

    def _fail(self, response_id: str) -> None:
        """Prefill nothing more for a response, and keep nothing for it."""
        self.end(response_id)
        self.growing[response_id] = failed = _Growth()
        failed.has_failed = True

    def _foreseen(
        self, response_id: str, growth: _Growth, turn: Turn | None, cache: ConnectionCache
    ) -> tuple[Job | None, Mapping[str, OpenCall]]:
        """The job that continues a response with its outputs, None as long as that is not possible; and the
        calls whose outputs may be part of it."""
        nothing = input_items.NOTHING.open_calls
        if turn is not None:
            job = between_steps.foreseen_job(turn)
            if job is None or turn.is_calling:
                return job, nothing
            rollout = turn.planned.rollout
            open_calls = rollout.open_calls if rollout is not None else nothing
        elif (state := cache.find(response_id)) is not None:
            job = foreseen_jobs.continuing(state, self._tenant, self._models)
            open_calls = state.carry.open_calls
        else:
            return None, nothing
        outputs = growth.items(open_calls)
        return structs.replace(job, input=job.input + outputs) if outputs else None, open_calls

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


def _has_moved_on(growth: _Growth, turn: Turn | None) -> bool:
    """Whether other calls of a paused rollout wait for their outputs than at the last prefill: outputs were
    appended, or hosted calls have ended."""
    rollout = turn.planned.rollout if turn is not None and not turn.is_calling else None
    if growth.seen_calls is None or rollout is None:
        return False
    return rollout.open_calls is not growth.seen_calls


def _failed_event(
    piece: ToolOutputPiece, refusal: PieceRefused, turn: Turn | None, lane: str | None
) -> Event:
    """The event that refuses a piece. Numbered within the response if it runs."""
    return ToolOutputFailed(
        sequence_number=turn.output.number() if turn is not None else 0,
        stream_id=turn.output.stream_id if turn is not None else UNSET if lane is None else lane,
        response_id=piece.target,
        call_id=piece.call_id,
        error=refusal.body,
    )
