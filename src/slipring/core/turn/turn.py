"""A turn: the making of one response, from its request to its terminal event.

Knows its request, its parent once bound, and the response object as it changes. Knows nothing of lanes,
queues or caches (that is the session), nor of how tokens are made (that is the engine).
"""

from msgspec import UNSET, structs

from slipring.core.chain import lineage
from slipring.core.chain.head import Head
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.generation import Accepted, Begun, Delta, Finished, Job, Model, Prefilled, Stop
from slipring.core.ports import Means
from slipring.core.session.client_events import Append
from slipring.core.session.loaded import Joined
from slipring.core.turn import response_object
from slipring.core.turn.compaction import Compaction, read_plan
from slipring.core.turn.output import Output
from slipring.core.turn.phase import Phase
from slipring.core.turn.request_validation import (
    ENCRYPTED_REASONING,
    read_settings,
    refuse_unseen_content,
    require_something,
)
from slipring.core.turn.rollout import Rollout, require_possible
from slipring.core.turn.stages import Stages, as_ms
from slipring.core.turn.steering import Steers
from slipring.errors import ApiError
from slipring.protocol import events
from slipring.protocol.events import Event
from slipring.protocol.intake import Intake
from slipring.protocol.items import Item, in_context
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import ConversationEcho, IncompleteDetails, Response
from slipring.protocol.timing import TurnReport
from slipring.protocol.tools import ToolChoice, merged


class Turn:
    """One response in the making."""

    __slots__ = (
        "_accepted",
        "_carry",
        "_finished",
        "_head",
        "_means",
        "_prefilled",
        "_rendered",
        "compaction",
        "detached",
        "error",
        "follows",
        "forks",
        "found",
        "input",
        "joined",
        "lane",
        "output",
        "parent",
        "phase",
        "request",
        "response",
        "rollout",
        "size_bytes",
        "stages",
        "steered_by",
        "steers",
        "stop",
        "tenant",
    )

    def __init__(
        self,
        request: CreateRequest,
        *,
        tenant: str,
        lane: str | None,
        size_bytes: int,
        means: Means,
        stages: Stages,
        error: ApiError | None = None,
        detached: bool = False,
    ) -> None:
        self.request = request
        self.tenant = tenant
        self.lane = lane
        self.size_bytes = size_bytes
        self.error = error
        """Set when the request could not be read: the refusal waits for its place in the lane."""
        self.stages = stages
        self.detached = detached
        """Whether it goes on without anybody who listens: its response exists before the engine consents."""
        self.phase = Phase.WAITING
        self.forks = False
        """Whether it continues a response of another lane."""
        self.follows = False
        """Whether nobody has asked for it but by steering the response that it continues."""
        self.steers: Steers | None = None
        """What was added to it while it was made, and waits for its end."""
        self.steered_by: Steers | None = None
        """What was added to its parent, and is the beginning of its input. Its own as soon as it exists."""
        self.stop = Stop()
        self.parent: ResponseState | None = None
        self.joined: Joined | None = None
        self.input: tuple[Item, ...] = ()
        self.found: dict[str, Item] = {}
        """The items that references in the input stand for."""
        self.response: Response | None = None
        self.output = Output(means.mint, UNSET if lane is None else lane)
        self.compaction: Compaction | None = None
        """Of its context, where that may be due."""
        self.rollout: Rollout | None = None
        """Where it goes on behind the calls of its model."""
        self._means = means
        self._head = Head()
        self._carry = Carry()
        self._accepted: Accepted | None = None
        self._rendered = self._prefilled = False
        self._finished: Finished | None = None

    @property
    def stores(self) -> bool:
        return self.request.store is not False

    @property
    def saves(self) -> bool:
        """Whether something is to be made durable before it may be called complete."""
        return self.stores or self.joined is not None

    def join(self, joined: Joined, tip: ResponseState | None) -> None:
        """Take part in a conversation: go on from its last response, and from what was added since."""
        references = lineage.references(self.input)
        if references:
            known = tip.find_items(references) if tip is not None else {}
            named = {item.id: item for item in joined.items if item.id in references}
            self.found = {**self.found, **known, **{key: item for key, item in named.items() if key}}
        self.joined, self.parent = joined, tip
        self.input = joined.items + self.input

    def begin(
        self, response_id: str, model: Model, items: tuple[Item, ...], now: float, intake: Intake
    ) -> Job:
        """Check the request against its parent and the model. What is left is to compile what it defines,
        which the ``intake`` has taken, and the engine's consent."""
        request, parent = self.request, self.parent
        generate = not request.warms_up
        plan = read_plan(request, items, model)
        if request.rollout:
            require_possible(request, compacts=plan is not None)
        alone = plan is not None and plan.alone
        if alone:
            items = items[:-1]  # what asks for the compaction is no part of the context
        if generate and parent is None:
            require_something(request, items)
        self.input = items
        carry = lineage.join(lineage.carried(parent), items, complete=generate and not alone, intake=intake)
        settings = read_settings(request, carry, model, intake, detached=self.detached)
        refuse_unseen_content(items, model.capabilities)
        head = Head.read(request, parent.head if parent is not None else None, intake)
        choice = ToolChoice.read(request.tool_choice)
        offer = choice.offer(merged(head.tools.callables, carry.tools))
        self._head, self._carry = head, carry
        self.output.response_id = response_id
        if ENCRYPTED_REASONING in (request.include or ()):
            self.output.conceal = self._conceal
        self.response = response_object.new_response(
            request, head, choice, settings, response_id=response_id, model=model.name, now=now
        )
        if self.detached:
            self.response = structs.replace(self.response, status="queued", background=True)
        if self.joined is not None:
            conversation = ConversationEcho(self.joined.conversation_id)
            self.response = structs.replace(self.response, conversation=conversation)
        job = Job(
            response_id=response_id,
            tenant=self.tenant,
            model=model,
            head=head,
            parent=parent,
            input=tuple(in_context(items)),
            offer=offer,
            settings=settings,
            generate=generate,
            fork=self.forks,
            cache_key=request.prompt_cache_key,
            stop=self.stop,
        )
        if plan is not None:
            self.compaction = Compaction(plan, job, carry)
        if request.rollout:
            self.rollout = Rollout(job, carry, choice)
        return job

    def accept(self, deltas: list[Delta]) -> list[Event]:
        """The engine's first deltas: the response exists, and unless it is a warmup, it is being made."""
        assert self.response is not None
        self._accepted = Accepted()
        told = self._resumption() if self.detached else self._opening()
        if self.is_compacting:
            told += self.output.open_compaction()
        told += self.feed(deltas)
        self.phase = Phase.RUNNING
        return told

    @property
    def must_weigh(self) -> bool:
        """Whether the context has to be counted before it is known what is to be done first."""
        return self.compaction is not None and self.compaction.must_weigh()

    def first_job(self, job: Job, tokens: int = 0) -> Job:
        """What the engine is to do first with a job of so many tokens."""
        compaction = self.compaction
        return compaction.summary_job() if compaction is not None and compaction.is_due(tokens) else job

    @property
    def is_compacting(self) -> bool:
        """Whether what the engine says is a summary of the context, and not an answer."""
        return self.compaction is not None and self.compaction.is_running

    def compacted(self) -> tuple[list[Event], Job | None]:
        """The summary is there: the events that say so, and what is left to do, if anything is."""
        compaction = self.compaction
        assert compaction is not None
        items = compaction.conclude()
        self.parent, self._carry = None, lineage.join(lineage.NOTHING, items, complete=False)
        told = self.output.close_compaction(items, self._conceal(items))
        self.stages.lap("compact")
        if compaction.plan.alone:
            assert compaction.finished is not None
            # A summary that was cut off is one all the same; where the engine stands now is of no use.
            self._finished = structs.replace(compaction.finished, reason="stop", position=None)
            return told, None
        return told, compaction.job_after(items)

    def _conceal(self, items: tuple[Item, ...]) -> str:
        return self._means.seal.seal(self.tenant, items)

    def enqueue(self) -> list[Event]:
        """A detached response exists as soon as it is known to be valid, and waits for its engine."""
        assert self.response is not None
        return [
            self.output.announce(events.Created, self.response),
            self.output.announce(events.Queued, self.response),
        ]

    def _resumption(self) -> list[Event]:
        assert self.response is not None
        self.response = structs.replace(self.response, status="in_progress")
        return [self.output.announce(events.InProgress, self.response)]

    def _opening(self) -> list[Event]:
        assert self.response is not None
        created = self.output.announce(events.Created, self.response)
        if self.request.warms_up:
            return [created]
        return [created, self.output.announce(events.InProgress, self.response)]

    def feed(self, deltas: list[Delta]) -> list[Event]:
        """Take deltas from the engine; the last one ever is ``Finished``."""
        if self.compaction is not None and self.compaction.is_running:
            self.compaction.take(deltas)
            return []
        if deltas and type(last := deltas[-1]) is Finished:
            self._finished = last
            deltas = deltas[:-1]
        if not self._prefilled:
            deltas = self._prelude(deltas)
        told = self.output.feed(deltas)
        if self.steers is not None:
            self.stop.asked = self.steers.may_end(deltas)
        return told

    def steer(self, steers: Steers) -> None:
        """Something was added: end where that may be, if it may be here already."""
        self.steers = steers
        self.stop.asked = steers.may_end([])

    @property
    def cannot_be_steered(self) -> str | None:
        """Why nothing can be added to it, in words; None: something can."""
        if self.request.warms_up:
            return "It is a warmup, and says nothing."
        if self.detached:
            return "It is made in the background."
        if self.joined is not None:
            return "It is part of a conversation."
        if self.compaction is not None or self.request.context_management:
            return "Its context may be compacted."
        return None

    def _prelude(self, deltas: list[Delta]) -> list[Delta]:
        """Take note of what an engine reports before it speaks; returns what it says."""
        if not self._rendered:
            self._rendered = True
            accepted = next((delta for delta in deltas if isinstance(delta, Accepted)), Accepted())
            self._accepted = accepted if self._accepted is None else accepted.after(self._accepted)
            self.stages.lap("render")
        if any(isinstance(delta, Begun) for delta in deltas):
            self.stages.lap("engine_queue")
        said: list[Delta] = [delta for delta in deltas if not isinstance(delta, Accepted | Begun | Prefilled)]
        if said or self._finished is not None or any(isinstance(delta, Prefilled) for delta in deltas):
            self._prefilled = True
            self.stages.lap("prefill")
        return said

    def pause(self, waits_until: float, most_bytes: int) -> tuple[bool, list[Event]]:
        """The engine has ended a step: wait, if this is a rollout and the client owes it something. Tells
        whether it does."""
        rollout, finished, output = self.rollout, self._finished, self.output
        if rollout is None or finished is None or self.response is None or not output.calls:
            return False, []
        if finished.reason not in ("stop", "steered"):
            return False, []
        told = output.finish("completed")
        if not rollout.may_go_on(output, finished, most_bytes):
            return False, told
        carry = lineage.after_output(self._carry, output.latest)
        if not any(call.required for call in carry.open_calls.values()):
            return False, told
        self.stages.lap("generate")
        self._rendered = self._prefilled = False
        self.phase, rollout.waits_until = Phase.PAUSED, waits_until
        told += rollout.pause(output, finished, self.response, carry)
        if output.since == len(output.items):
            self._carry = rollout.carry
        return True, told

    def append(self, asked: Append, waits_until: float) -> list[Event]:
        """Take what the client owes; it becomes a part of the response as soon as the model is silent."""
        assert self.rollout is not None
        self.rollout.hold(asked, self.output)
        if self.phase is not Phase.PAUSED:
            return []
        self.rollout.waits_until = waits_until
        told = self.rollout.commit(self.output)
        self._carry = self.rollout.carry
        return told

    @property
    def may_resume(self) -> bool:
        """Whether a rollout has all that it waited for."""
        return self.phase is Phase.PAUSED and self.rollout is not None and self.rollout.is_answered

    def resume(self) -> Job:
        """Go on with a rollout."""
        assert self.rollout is not None
        self.stages.lap("client")
        self.stages.fold()
        self._finished = None
        self.phase = Phase.RUNNING
        self.stop.asked = self.steers is not None and self.steers.may_end([])
        return self.rollout.next_job()

    @property
    def can_be_broken_off(self) -> bool:
        """Whether it has come so far that what there is of it is worth keeping, though it is not finished."""
        return self.phase is Phase.RUNNING and self.rollout is not None and self.rollout.spent is not None

    def break_off(self) -> None:
        """Nobody waits for the step that is being made: it counts as said as far as it was."""
        self._finished = Finished("broken_off", input_tokens=0, cached_tokens=0, output_tokens=0)

    def _given_back(self) -> list[Event]:
        return self.rollout.give_back(self.output) if self.rollout is not None else []

    def finish(self, now: float) -> tuple[list[Event], ResponseState]:
        """The engine is done: the events that close the output, and the new state. ``terminal`` is left."""
        finished, response = self._finished, self.response
        if finished is None or response is None:
            raise RuntimeError("the engine ended its stream without a Finished delta")
        if self.compaction is not None:
            finished = self._finished = self.compaction.together(finished)
        if self.rollout is not None:
            finished = self._finished = self.rollout.total(finished)
        if self._rendered:
            self.stages.lap("generate")
        elif self.phase is Phase.PAUSED:
            self.stages.lap("client")
        reason = finished.reason
        if reason == "steered" and self.output.calls:
            reason = "stop"  # it is over: the client has to answer first
        stopped = reason == "stop"
        # What is thought is whole where an answer was ended on purpose; what is said may not be.
        is_whole = stopped or (reason == "steered" and self.output.last_words is None)
        closing = self.output.finish("completed" if is_whole else "incomplete") + self._given_back()
        self.response = response = structs.replace(
            response,
            status="completed" if stopped else "incomplete",
            completed_at=int(now) if stopped else None,
            incomplete_details=None if reason == "stop" else IncompleteDetails.of(reason),
            output=self.output.raw_items(),
            usage=response_object.usage(finished),
        )
        state = ResponseState(
            response=response,
            parent=self.parent,
            head=self._head,
            input=self.input,
            output=tuple(self.output.items),
            carry=lineage.after_output(self._carry, self.output.latest, cut_off=not stopped),
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
        closing = self.output.finish("incomplete") + self._given_back()
        self.response = structs.replace(
            self.response,
            status="failed",
            completed_at=None,
            incomplete_details=None,
            output=self.output.raw_items(),
            error=response_object.failure(error),
        )
        closing.append(self.output.announce(events.Failed, self.response))
        return closing

    def report(self, error: ApiError | None = None) -> TurnReport:
        """What there is to say about a turn that is over; ``error``: why it was refused."""
        accepted, finished, stages = self._accepted, self._finished, self.stages
        if finished is None and self.rollout is not None:
            finished = self.rollout.spent
        previous = self.request.previous_response_id
        report = TurnReport(
            status="refused",
            request_bytes=self.size_bytes,
            stages=stages.laps,
            total_ms=stages.total_ms,
            previous_response_id=previous[:64] if previous is not None else UNSET,
            error_code=error.code if error is not None else UNSET,
        )
        if accepted is None or self.response is None:
            return report
        failure = self.response.error
        return structs.replace(
            report,
            status=self.response.status,
            response_id=self.response.id,
            model=self.response.model,
            input_items=len(self.input),
            send_ms=as_ms(stages.send_s),
            tokens=response_object.counts(accepted, finished) if finished is not None else UNSET,
            fallback=accepted.fallback or UNSET,
            dropped_items=accepted.dropped_items or UNSET,
            error_code=failure.code if failure is not None else UNSET,
        )
