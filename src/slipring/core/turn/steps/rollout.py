"""Rollouts: a whole agent loop as one response.

When the model calls a tool, a rollout does not end: it pauses until the client has appended the outputs, then
continues in the same context. ``Rollout`` owns what concerns the client: its deadline, and the appends that
arrive during a step. ``Steps`` owns the jobs.
"""

from collections.abc import Mapping

from msgspec import UNSET, Raw, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.input_items import OpenCarry, required_input
from slipring.core.chain.state import Carry, OpenCall
from slipring.core.turn.output.output_events import Output
from slipring.core.turn.steps.step_jobs import Steps
from slipring.protocol.events import (
    AppendErrorBody,
    AppendErrorCode,
    AppendFailed,
    Done,
    Event,
    InjectCreated,
    InjectErrorBody,
    InjectErrorCode,
    InjectFailed,
)
from slipring.protocol.live_input import Append
from slipring.protocol.requests import CreateRequest

_NO_ITEMS = Raw(b"[]")


class AppendRefused(Exception):
    """An append is not accepted; ``body`` is the error sent to the client."""

    def __init__(self, code: AppendErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.body = AppendErrorBody(code, message, param)


class Rollout:
    """The appends of one response, and how long it waits for them."""

    __slots__ = ("_carry", "_committed", "_held", "_steps", "_waits_until")

    def __init__(self, steps: Steps, carry: OpenCarry) -> None:
        """``carry``: the turn's own, which the rollout extends."""
        self._waits_until = 0.0
        """While paused: the time at which it stops waiting for the client."""
        self._steps = steps
        self._carry = carry
        self._committed = 0
        """Items of appends that were committed since the last step."""
        self._held: list[Append] = []
        """Appends accepted while a step ran; committed when it ends."""

    @property
    def is_answered(self) -> bool:
        """Whether no required call waits for its output."""
        return not any(call.required for call in self._carry.current.open_calls.values())

    @property
    def holds_appends(self) -> bool:
        """Whether appends are accepted but not committed."""
        return bool(self._held)

    @property
    def size_bytes(self) -> int:
        """Size of all generated and appended items."""
        return self._steps.size_bytes

    @property
    def held_bytes(self) -> int:
        """Size of the appends that are accepted but not committed."""
        return sum(append.size_bytes for append in self._held)

    @property
    def open_calls(self) -> Mapping[str, OpenCall]:
        """The calls that wait for their outputs."""
        return self._carry.current.open_calls

    def wait_until(self, time: float) -> None:
        """Wait for the client until then."""
        self._waits_until = time

    def is_late(self, now: float) -> bool:
        """Whether the client has not sent its outputs in time."""
        return now >= self._waits_until

    def pause(self, output: Output, *, may_commit: bool, may_wait: bool) -> list[Event]:
        """A step has ended, and so have its hosted calls: commit the held appends, if ``may_commit`` says
        that they have passed.

        Returns the events, with a final ``response.done`` if the client still has to send outputs and
        ``may_wait`` says that it can.
        """
        step, self._committed = output.latest, 0
        sent = self.commit(output) if may_commit else []
        if may_wait and not self.is_answered:
            sent.append(
                Done(
                    sequence_number=output.number(),
                    stream_id=output.stream_id,
                    response_id=output.response_id,
                    required_input=required_input(step, self._carry.current),
                )
            )
        return sent

    def hold(self, append: Append, carry: Carry) -> None:
        """Hold an append that is accepted. ``carry``: of the context with it."""
        self._carry.extend(carry)
        self._held.append(append)

    def commit(self, output: Output) -> list[Event]:
        """Add the held appends to the output and to the input of the next step. No hosted call may run."""
        sent: list[Event] = []
        held, self._held = self._held, []
        for append in held:
            if append.injects:
                sent.append(
                    InjectCreated(
                        sequence_number=output.number(), stream_id=output.stream_id, response_id=append.target
                    )
                )
            sent += output.append(append.items)
            appended = tuple(output.items[-len(append.items) :])
            self._steps.add(appended)
            self._steps.grow(appended)
            self._committed += len(appended)
        if held:
            self._carry.settle(output.finished)
        return sent

    def withdraw(self, output: Output) -> None:
        """Pause again instead of the step that was to begin, without what was committed for it."""
        output.withdraw(self._committed)
        self._carry.replace(self._steps.withdraw(self._committed), len(output.finished))

    def return_held(self, output: Output, *, is_blocked: bool) -> list[Event]:
        """The response has ended: events that return the held appends to the client. ``is_blocked``: a safety
        check has refused something, perhaps in one of them: then they are returned without their content."""
        held, self._held = self._held, []
        refusal = AppendRefused(
            "response_not_active", "The response ended before this input could be added to it."
        )
        if is_blocked:
            held = [structs.replace(append, input=_NO_ITEMS) for append in held]
        return [failed_event(append, refusal, output, None) for append in held]


def require_possible(request: CreateRequest, *, compacts: bool) -> None:
    """Refuse fields that cannot be combined with ``rollout``."""
    clashes = {
        "generate": request.warms_up,
        "context_management": compacts,
        "background": request.background is True,
    }
    for param, clash in clashes.items():
        if clash:
            raise InvalidRequest(f"'{param}' cannot be used with 'rollout'.", param=param)


def failed_event(append: Append, refusal: AppendRefused, output: Output | None, lane: str | None) -> Event:
    """The event that refuses an append and returns its input. Numbered within the response if it runs."""
    body = refusal.body
    number = output.number() if output is not None else 0
    stream_id = output.stream_id if output is not None else UNSET if lane is None else lane
    if not append.injects:
        return AppendFailed(
            sequence_number=number,
            stream_id=stream_id,
            response_id=append.target,
            input=append.input,
            error=body,
        )
    has_ended = body.code in ("response_already_completed", "response_not_active")
    # The API defines only these two codes for injections; the message gives the reason.
    code: InjectErrorCode = "response_already_completed" if has_ended else "response_not_found"
    return InjectFailed(
        sequence_number=number,
        stream_id=stream_id,
        response_id=append.target,
        input=append.input,
        error=InjectErrorBody(code, body.message),
    )
