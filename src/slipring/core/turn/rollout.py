"""Rollouts: a whole agent loop as one response.

When the model calls a tool, a rollout does not end: it pauses until the client has appended the outputs, then
continues in the same context. ``Rollout`` owns the state between two steps: the deadline for the client, the
appends that arrived during a step, and the job of the next step, which continues the last step as a response
continues its parent.
"""

from collections.abc import Mapping

from msgspec import UNSET, structs

from slipring.core.chain import input_items
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.state import Carry, OpenCall, ResponseState
from slipring.core.generation import Finished, Job, Stop
from slipring.core.ports import Betas
from slipring.core.turn import response_object
from slipring.core.turn.output_events import Output
from slipring.core.turn.request_validation import refuse_unseen_content
from slipring.core.turn.steer_queue import required_input
from slipring.errors import ApiError, InvalidRequest, quoted
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
from slipring.protocol.items import MOST_ITEMS
from slipring.protocol.live_input import Append
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.tools import Offer, ToolChoice, merged

_LEAST_TOKENS = 16
"""Other servers accept no smaller ``max_output_tokens``."""
_HEADER = "OpenAI-Beta: slipring_rollout=v1"


class AppendRefused(Exception):
    """An append is not accepted; ``body`` is the error sent to the client."""

    def __init__(self, code: AppendErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.body = AppendErrorBody(code, message, param)


class Rollout:
    """The state of one response between its steps."""

    __slots__ = (
        "_calls",
        "_carry",
        "_choice",
        "_held",
        "_input",
        "_is_paused",
        "_job",
        "_node",
        "size_bytes",
        "spent",
        "waits_until",
    )

    def __init__(self, job: Job, carry: OpenCarry, choice: ToolChoice) -> None:
        """``carry``: the turn's own, which the rollout extends."""
        self.waits_until = 0.0
        """While paused: the time at which it stops waiting for the client."""
        self.size_bytes = 0
        """Of all generated and appended items."""
        self.spent: Finished | None = None
        """Token counts of the finished steps; None before the first pause."""
        self._job = job
        self._choice = choice
        self._carry = carry
        self._input = job.input
        """Input of the running step, or of the next one while paused."""
        self._node = job.parent
        """The state that this step continues."""
        self._is_paused = False
        self._held: list[Append] = []
        """Appends accepted while a step ran; committed when it ends."""
        self._calls = 0

    @property
    def is_answered(self) -> bool:
        """Whether no required call waits for its output."""
        return not any(call.required for call in self._carry.current.open_calls.values())

    @property
    def held_bytes(self) -> int:
        """Size of the appends that are accepted but not committed."""
        return sum(append.size_bytes for append in self._held)

    @property
    def open_calls(self) -> Mapping[str, OpenCall]:
        """The calls that wait for their outputs."""
        return self._carry.current.open_calls

    def may_continue(self, output: Output, finished: Finished, most_bytes: int) -> bool:
        """Whether another step fits the bounds on bytes, items and output tokens."""
        self._observe(output)
        most = self._job.settings.max_output_tokens
        spent = finished.output_tokens + (self.spent.output_tokens if self.spent is not None else 0)
        is_small = self.size_bytes < most_bytes and len(output.items) < MOST_ITEMS
        return is_small and (most is None or spent + _LEAST_TOKENS <= most)

    def pause(self, output: Output, finished: Finished, response: Response, carry: Carry) -> list[Event]:
        """End a step and commit the held appends; ``carry`` is that of the context after the step.

        Returns the events, with a final ``response.done`` if the client still has to send outputs.
        """
        self._observe(output)
        step = output.latest
        self._node = ResponseState(
            response=structs.replace(response, usage=response_object.usage(finished)),
            parent=self._node,
            head=self._job.head,
            input=self._input,
            output=step,
            carry=carry,
            position=finished.position,
        )
        self._input = ()
        self._is_paused = True
        # The response continues, whatever ended the step.
        finished = structs.replace(finished, reason="stop")
        self.spent = finished if self.spent is None else finished.after(self.spent)
        sent = self.commit(output)
        if not self.is_answered:
            sent.append(
                Done(
                    sequence_number=output.number(),
                    stream_id=output.stream_id,
                    response_id=response.id,
                    required_input=required_input(step, self._carry.current),
                )
            )
        return sent

    def total(self, finished: Finished) -> Finished:
        """The end of the response, with the tokens of all steps."""
        spent = self.spent
        if spent is None:
            return finished
        if not self._is_paused:
            return finished.after(spent)
        # No engine has processed what was appended since the pause.
        return structs.replace(spent, position=None, context=None) if self._input else spent

    def hold(self, append: Append, output: Output) -> None:
        """Accept an append as a whole, or raise ``AppendRefused``."""
        self._observe(output)
        if len(output.items) + len(append.items) > MOST_ITEMS:
            raise AppendRefused("too_much_pending_input", "The response has too many items already.")
        try:
            carry = input_items.join(self._carry.current, append.items, complete=False)
            refuse_unseen_content(append.items, self._job.model.capabilities)
            self._offer(carry)
        except ApiError as error:
            raise AppendRefused("invalid_input", error.message, error.param) from None
        self._carry.current = carry
        self._held.append(append)

    def commit(self, output: Output) -> list[Event]:
        """Add the held appends to the output and to the input of the next step."""
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
            self._input += appended
            self.size_bytes += sum(item.size_bytes for item in appended)
        if held:
            self._carry.settle(output.items)
        return sent

    def return_held(self, output: Output) -> list[Event]:
        """The response has ended: events that return the held appends to the client."""
        held, self._held = self._held, []
        refusal = AppendRefused(
            "response_not_active", "The response ended before this input could be added to it."
        )
        return [failed_event(append, refusal, output, None) for append in held]

    def next_job(self) -> Job:
        """The job of the next step, with what is left of the bounds on tokens and calls."""
        self._is_paused = False
        job, settings, offer = self._job, self._job.settings, self._offer(self._carry.current)
        assert self.spent is not None
        if settings.max_output_tokens is not None:
            left = settings.max_output_tokens - self.spent.output_tokens
            settings = structs.replace(settings, max_output_tokens=left)
        if settings.max_tool_calls is not None:
            left = settings.max_tool_calls - self._calls
            settings = structs.replace(settings, max_tool_calls=max(left, 1))
            offer = offer if left > 0 else Offer(forbidden=True)
        return structs.replace(
            job,
            parent=self._node,
            input=self._input,
            offer=offer,
            settings=settings,
            fork=False,
            recognised=False,
        )

    def foreseen_job(self) -> Job:
        """While paused: a warmup of the next step, as far as its input is known."""
        return structs.replace(
            self._job,
            parent=self._node,
            input=self._input,
            generate=False,
            fork=False,
            recognised=False,
            stop=Stop(),
        )

    def _observe(self, output: Output) -> None:
        """Count the output items that have been finished since the last call."""
        new = self._carry.observe(output.items)
        self.size_bytes += sum(item.size_bytes for item in new)
        self._calls += sum(input_items.is_call(item) for item in new)

    def _offer(self, carry: Carry) -> Offer:
        """The tools of the next step. Raises if ``tool_choice`` names a tool that is not among them."""
        return self._choice.once_called.offer(merged(self._job.head.tools.callables, carry.tools))


def missing_beta(request: CreateRequest, betas: Betas) -> ApiError | None:
    """The error for a request that asks for a rollout on a connection that has not enabled them."""
    if not request.rollout or betas.rollout:
        return None
    return InvalidRequest(
        f"'rollout' needs a WebSocket that was opened with the header '{_HEADER}'.", param="rollout"
    )


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


def not_running(append: Append, state: ResponseState | None) -> AppendRefused:
    """The refusal of an append whose response does not run; ``state``: the response, if it is cached."""
    if state is None:
        message = f"Response with id {quoted(append.target)} is not known on this connection."
        return AppendRefused("response_not_found", message)
    message = f"Response {quoted(append.target)} has already completed. Continue it instead."
    return AppendRefused("response_already_completed", message)
