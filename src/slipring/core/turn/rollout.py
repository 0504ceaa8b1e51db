"""Rollouts: a whole agent loop as one response.

Where its model calls a tool, a rollout does not end: it waits for its client and goes on in the same context.
Owns what lies between its steps: what it waits for and until when, what the client has sent for it, and the
job of the next step, which goes on from the last one as a response goes on from its parent. Knows nothing of
lanes, nor of when it is time for anything.
"""

from msgspec import UNSET, structs

from slipring.core.betas import Betas
from slipring.core.chain import lineage
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.generation import Finished, Job
from slipring.core.session.client_events import Append
from slipring.core.turn import response_object
from slipring.core.turn.output import Output
from slipring.core.turn.request_validation import refuse_unseen_content
from slipring.core.turn.steering import required_input
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
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.tools import Offer, ToolChoice, merged

_LEAST_TOKENS = 16
"""Servers elsewhere take no smaller bound on an answer."""
_HEADER = "OpenAI-Beta: slipring_rollout=v1"


class Refusal(Exception):
    """Something that is not appended, and why."""

    def __init__(self, code: AppendErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.body = AppendErrorBody(code, message, param)


class Rollout:
    """What one response knows of itself beyond a single step."""

    __slots__ = (
        "_calls",
        "_carry",
        "_choice",
        "_held",
        "_input",
        "_is_paused",
        "_job",
        "_node",
        "_seen",
        "_spent",
        "size_bytes",
        "waits_until",
    )

    def __init__(self, job: Job, carry: Carry, choice: ToolChoice) -> None:
        self.waits_until = 0.0
        """While it is paused: when it stops waiting."""
        self.size_bytes = 0
        """Of all that was said and appended."""
        self._spent: Finished | None = None
        self._job = job
        self._choice = choice
        self._carry = carry
        self._input = job.input
        """Of the step that runs, or is next."""
        self._node = job.parent
        """What that step goes on from."""
        self._is_paused = False
        self._held: list[Append] = []
        """What came while the model was still speaking."""
        self._seen = 0
        self._calls = 0

    @property
    def is_answered(self) -> bool:
        """Whether nothing is owed to it."""
        return not any(call.required for call in self._carry.open_calls.values())

    @property
    def carry(self) -> Carry:
        """Of the context with all that was said and appended."""
        return self._carry

    @property
    def spent(self) -> Finished | None:
        """What the steps took that are over; None: there is none."""
        return self._spent

    @property
    def held_bytes(self) -> int:
        """What has been accepted, and is no part of the response yet."""
        return sum(asked.size_bytes for asked in self._held)

    def look(self, output: Output) -> None:
        """Take note of what has been said."""
        new = tuple(output.items[self._seen :])
        if new:
            self._seen += len(new)
            self.size_bytes += sum(item.size_bytes for item in new)
            self._calls += sum(lineage.is_call(item) for item in new)
            self._carry = lineage.after_output(self._carry, new)

    def may_go_on(self, output: Output, finished: Finished, most_bytes: int) -> bool:
        """Whether there could be another step behind the one that has just ended."""
        self.look(output)
        most = self._job.settings.max_output_tokens
        spent = finished.output_tokens + (self._spent.output_tokens if self._spent is not None else 0)
        is_small = self.size_bytes < most_bytes and len(output.items) < MOST_ITEMS
        return is_small and (most is None or spent + _LEAST_TOKENS <= most)

    def pause(self, output: Output, finished: Finished, response: Response, carry: Carry) -> list[Event]:
        """A step is over, and the client has to answer its calls; ``carry``: what the step leaves. Tells what
        is owed, unless it has come already."""
        self.look(output)
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
        # Whatever ended the step, the response goes on.
        finished = structs.replace(finished, reason="stop")
        self._spent = finished if self._spent is None else finished.after(self._spent)
        told = self.commit(output)
        if not self.is_answered:
            told.append(
                Done(
                    sequence_number=output.number(),
                    stream_id=output.stream_id,
                    response_id=response.id,
                    required_input=required_input(step, self._carry),
                )
            )
        return told

    def total(self, finished: Finished) -> Finished:
        """The end of the response, with the tokens of all its steps."""
        spent = self._spent
        if spent is None:
            return finished
        if not self._is_paused:
            return finished.after(spent)
        # No engine has read what was appended since.
        return structs.replace(spent, position=None) if self._input else spent

    def hold(self, asked: Append, output: Output) -> None:
        """Accept what was sent, all of it or nothing."""
        self.look(output)
        if len(output.items) + len(asked.items) > MOST_ITEMS:
            raise Refusal("too_much_pending_input", "The response has too many items already.")
        try:
            carry = lineage.join(self._carry, asked.items, complete=False)
            refuse_unseen_content(asked.items, self._job.model.capabilities)
            self._offer(carry)
        except ApiError as error:
            raise Refusal("invalid_input", error.message, error.param) from None
        self._carry = carry
        self._held.append(asked)

    def _offer(self, carry: Carry) -> Offer:
        """What may be called in the next step."""
        return self._choice.once_called.offer(merged(self._job.head.tools.callables, carry.tools))

    def commit(self, output: Output) -> list[Event]:
        """Make all that was accepted a part of the response."""
        told: list[Event] = []
        held, self._held = self._held, []
        for asked in held:
            if asked.injects:
                told.append(
                    InjectCreated(
                        sequence_number=output.number(), stream_id=output.stream_id, response_id=asked.target
                    )
                )
            told += output.append(asked.items)
            appended = tuple(output.items[-len(asked.items) :])
            self._input += appended
            self.size_bytes += sum(item.size_bytes for item in appended)
        self._seen = len(output.items)
        return told

    def give_back(self, output: Output) -> list[Event]:
        """The response is over: what was accepted and is no part of it."""
        held, self._held = self._held, []
        refusal = Refusal("response_not_active", "The response ended before this could become a part of it.")
        return [refused(asked, refusal, output, None) for asked in held]

    def next_job(self) -> Job:
        """Everything is answered: go on."""
        self._is_paused = False
        job, settings, offer = self._job, self._job.settings, self._offer(self._carry)
        assert self._spent is not None
        if settings.max_output_tokens is not None:
            left = settings.max_output_tokens - self._spent.output_tokens
            settings = structs.replace(settings, max_output_tokens=left)
        if settings.max_tool_calls is not None:
            left = settings.max_tool_calls - self._calls
            settings = structs.replace(settings, max_tool_calls=max(left, 1))
            offer = offer if left > 0 else Offer(forbidden=True)
        return structs.replace(
            job, parent=self._node, input=self._input, offer=offer, settings=settings, fork=False
        )


def objection_to(request: CreateRequest, betas: Betas) -> ApiError | None:
    """Why a request cannot be served on a connection, where it asks for a rollout and may not."""
    if not request.rollout or betas.rollout:
        return None
    return InvalidRequest(
        f"'rollout' needs a WebSocket that was opened with the header '{_HEADER}'.", param="rollout"
    )


def require_possible(request: CreateRequest, *, compacts: bool) -> None:
    """Refuse what does not go together with a rollout."""
    clashes = {
        "generate": request.warms_up,
        "context_management": compacts,
        "background": request.background is True,
    }
    for param, clash in clashes.items():
        if clash:
            raise InvalidRequest(f"'{param}' cannot be used with 'rollout'.", param=param)


def refused(asked: Append, refusal: Refusal, output: Output | None, lane: str | None) -> Event:
    """Give back what was not appended, by the numbers of the response, where they are known."""
    body = refusal.body
    number = output.number() if output is not None else 0
    stream_id = output.stream_id if output is not None else UNSET if lane is None else lane
    if not asked.injects:
        return AppendFailed(
            sequence_number=number,
            stream_id=stream_id,
            response_id=asked.target,
            input=asked.input,
            error=body,
        )
    is_over = body.code in ("response_already_completed", "response_not_active")
    # The API knows these two alone; the message says what it was.
    code: InjectErrorCode = "response_already_completed" if is_over else "response_not_found"
    return InjectFailed(
        sequence_number=number,
        stream_id=stream_id,
        response_id=asked.target,
        input=asked.input,
        error=InjectErrorBody(code, body.message),
    )


def objection(asked: Append, state: ResponseState | None) -> Refusal:
    """Why nothing can be appended to a response that is not being made here."""
    if state is None:
        said = f"Response with id {quoted(asked.target)} is not known on this connection."
        return Refusal("response_not_found", said)
    said = f"Response {quoted(asked.target)} has already completed. Continue it instead."
    return Refusal("response_already_completed", said)
