"""A turn: the making of one response, from its request to its terminal event.

Knows its request, its parent once bound, and the response object as it changes. Knows nothing of lanes,
queues or caches (that is the session), nor of how tokens are made (that is the engine).
"""

from enum import Enum

from msgspec import UNSET, structs

from slipring.core import lineage
from slipring.core.generation import Delta, Finished, Job, Model, Settings
from slipring.core.head import Head
from slipring.core.output import Mint, Output
from slipring.core.settings import read_settings, refuse_unseen_content
from slipring.core.state import Carry, ResponseState
from slipring.errors import ApiError, InvalidRequest
from slipring.protocol import events, wire
from slipring.protocol.events import Event
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ReasoningEcho,
    Response,
    ResponseError,
    TextEcho,
    Usage,
)
from slipring.protocol.tools import ToolChoice, Toolset, merged

_FAILURE_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""The wire knows few codes for a failed response; clients repeat the request on all but these."""


class Phase(Enum):
    WAITING = "in its lane's queue"
    LOADING = "its parent is being read from the store"
    RUNNING = "the engine is at work"
    SAVING = "finished, being made durable"
    ENDED = "its terminal event is out"


class Turn:
    """One response in the making."""

    __slots__ = (
        "_carry",
        "_finished",
        "_head",
        "error",
        "found",
        "input",
        "lane",
        "output",
        "parent",
        "phase",
        "request",
        "response",
        "size_bytes",
        "tenant",
    )

    def __init__(
        self,
        request: CreateRequest,
        *,
        tenant: str,
        lane: str | None,
        size_bytes: int,
        mint: Mint,
        error: ApiError | None = None,
    ) -> None:
        self.request = request
        self.tenant = tenant
        self.lane = lane
        self.size_bytes = size_bytes
        self.error = error
        """Set when the request could not be read: the refusal waits for its place in the lane."""
        self.phase = Phase.WAITING
        self.parent: ResponseState | None = None
        self.input: tuple[Item, ...] = ()
        self.found: dict[str, Item] = {}
        """The items that references in the input stand for."""
        self.response: Response | None = None
        self.output = Output(mint, UNSET if lane is None else lane)
        self._head = Head()
        self._carry = Carry()
        self._finished: Finished | None = None

    @property
    def stores(self) -> bool:
        return self.request.store is not False

    def begin(self, response_id: str, model: Model, items: tuple[Item, ...], now: float) -> Job:
        """Check the request against its parent and the model; on success the response exists."""
        request, parent = self.request, self.parent
        generate = not request.warms_up
        self._require_something(items, generate=generate)
        self.input = items
        carry = lineage.join(parent, items, complete=generate)
        settings = read_settings(request, carry, model.capabilities)
        refuse_unseen_content(items, model.capabilities)
        head = self._read_head()
        choice = ToolChoice.read(request.tool_choice)
        offer = choice.offer(merged(head.tools.callables, carry.tools))
        self._head, self._carry = head, carry
        self.response = self._new_response(response_id, model, choice, settings, now)
        self.phase = Phase.RUNNING
        return Job(
            response_id=response_id,
            tenant=self.tenant,
            model=model,
            head=head,
            parent=parent,
            input=items,
            offer=offer,
            settings=settings,
            generate=generate,
        )

    def opening(self) -> list[Event]:
        """The events that say the response exists and, unless it is a warmup, that it is being made."""
        assert self.response is not None
        created = self.output.announce(events.Created, self.response)
        if self.request.warms_up:
            return [created]
        return [created, self.output.announce(events.InProgress, self.response)]

    def feed(self, deltas: list[Delta]) -> list[Event]:
        """Take deltas from the engine; the last one ever is ``Finished``."""
        if deltas and type(last := deltas[-1]) is Finished:
            self._finished = last
            deltas = deltas[:-1]
        return self.output.feed(deltas)

    def finish(self, now: float) -> tuple[list[Event], ResponseState]:
        """The engine is done: the events that close the output, and the new state. ``terminal`` is left."""
        finished, response = self._finished, self.response
        if finished is None or response is None:
            raise RuntimeError("the engine ended its stream without a Finished delta")
        stopped = finished.reason == "stop"
        closing = self.output.finish("completed" if stopped else "incomplete")
        self.response = response = structs.replace(
            response,
            status="completed" if stopped else "incomplete",
            completed_at=int(now) if stopped else None,
            incomplete_details=None if finished.reason == "stop" else IncompleteDetails(finished.reason),
            output=self.output.raw_items(),
            usage=_usage(finished),
        )
        output = tuple(self.output.items)
        state = ResponseState(
            response=response,
            parent=self.parent,
            head=self._head,
            input=self.input,
            output=output,
            carry=lineage.after_output(self._carry, output, cut_off=not stopped),
            position=finished.position,
        )
        return closing, state

    def terminal(self) -> Event:
        """The event that ends the turn, for a response that was finished."""
        assert self.response is not None
        completed = self.response.status == "completed"
        return self.output.announce(events.Completed if completed else events.Incomplete, self.response)

    def fail(self, error: ApiError) -> list[Event]:
        """The engine or the store failed: close what is open and say so, once."""
        assert self.response is not None
        closing = self.output.finish("incomplete")
        code = _FAILURE_CODES.get(error.status, "server_error")
        self.response = structs.replace(
            self.response,
            status="failed",
            completed_at=None,
            incomplete_details=None,
            output=self.output.raw_items(),
            error=ResponseError(code=code, message=error.message),
        )
        closing.append(self.output.announce(events.Failed, self.response))
        return closing

    def _require_something(self, items: tuple[Item, ...], *, generate: bool) -> None:
        if generate and not items and self.parent is None and self.request.instructions is None:
            raise InvalidRequest(
                "Missing required parameter: 'input' (or 'previous_response_id' to continue).",
                param="input",
                code="missing_required_parameter",
            )

    def _read_head(self) -> Head:
        """The head of this context; the parent's own where nothing in it changed."""
        request = self.request
        raw = wire.given(request.tools)
        if self.parent is not None:
            head = self.parent.head
            same_tools = head.tools.raw == (bytes(raw) if raw is not None else b"[]")
            if same_tools and head.instructions == request.instructions:
                return head
            if same_tools:
                return Head(instructions=request.instructions, tools=head.tools)
        return Head(instructions=request.instructions, tools=Toolset.read(request.tools))

    def _new_response(
        self, response_id: str, model: Model, choice: ToolChoice, settings: Settings, now: float
    ) -> Response:
        request, head = self.request, self._head
        verbosity = request.text.verbosity if request.text is not None else None
        return Response(
            id=response_id,
            created_at=int(now),
            model=model.name,
            instructions=head.instructions_json,
            previous_response_id=request.previous_response_id,
            tools=head.tools.echo,
            tool_choice=choice.echo,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning=_echo_reasoning(request, settings.effort),
            text=TextEcho(format=settings.format.echo, verbosity=verbosity or "medium"),
            store=self.stores,
            metadata=request.metadata or {},
            truncation=request.truncation or "disabled",
            temperature=_or(request.temperature, 1.0),
            top_p=_or(request.top_p, 1.0),
            top_logprobs=request.top_logprobs or 0,
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            service_tier="default",
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            prompt_cache_key=request.prompt_cache_key,
            safety_identifier=request.safety_identifier,
            user=request.user,
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _echo_reasoning(request: CreateRequest, effort: str | None) -> ReasoningEcho:
    asked = request.reasoning
    if asked is None:
        return ReasoningEcho(effort=effort)
    return ReasoningEcho(
        effort=effort,
        summary=asked.summary or asked.generate_summary,
        context=asked.context if asked.context is not None else UNSET,
        mode=asked.mode if asked.mode is not None else UNSET,
    )


def _usage(finished: Finished) -> Usage:
    return Usage(
        input_tokens=finished.input_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=finished.cached_tokens,
            cache_write_tokens=finished.input_tokens - finished.cached_tokens,
        ),
        output_tokens=finished.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=finished.reasoning_tokens),
        total_tokens=finished.input_tokens + finished.output_tokens,
    )
