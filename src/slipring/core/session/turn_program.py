"""The life of a turn, as one program: from the head of its lane's queue to the end of its response.

Read ``TurnProgram.run`` from top to bottom. Every wait is an ``await``: of ``Work``, which the driver does,
or of ``News``, which comes from outside. The program imports no event loop: ``Turns`` resumes it with the
outcome of what it waits for. Verdicts, ends of hosted calls, appends and steers change the turn while it
waits; all of them arrive in ``Turns``, which resumes a program that waits for news after each.

Any wait may be the last. It ends with its result; with an ``ApiError`` (the work has failed); with
``Interrupted`` (the server ends the turn, and has cancelled its work); with ``CutShort`` (the response ends
now with what it has); or not at all (the connection has closed, and so is the program).

A turn whose response was not created ends with an ``error`` event (``_refuse``), any other with exactly one
terminal event. Whatever its end, the turn then holds nothing: no lane, no charged bytes, no pinned state, no
prefill, no running call.
"""

from contextlib import suppress

from slipring.base.errors import ApiError, ServerError, forget_frames
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.generation import Job
from slipring.core.session import preparation
from slipring.core.session.actions import (
    CancelCalls,
    ClaimApprovals,
    CompileGrammars,
    Counted,
    CountTokens,
    Flush,
    Generate,
    ListTools,
    Load,
    Loaded,
    LogFault,
    ResolveTools,
    Save,
)
from slipring.core.session.session_state import SessionState
from slipring.core.turn import delivery, endings, request_validation, stages, turn_reports
from slipring.core.turn.stages import Blocked, CutShort, Interrupted
from slipring.core.turn.steps import between_steps
from slipring.core.turn.turn import Ended, Turn
from slipring.protocol.events import Event


class TurnProgram:
    """Runs one turn, and sets what the turn is bound to, prepared and planned as, and how it ends."""

    __slots__ = ("_pinned", "_shared", "turn")

    def __init__(self, turn: Turn, shared: SessionState) -> None:
        self.turn = turn
        self._shared = shared
        self._pinned: tuple[ConnectionCache, ResponseState] | None = None
        """What the turn continues, and where it is counted."""

    async def run(self) -> Turn | None:
        """The whole life of the turn. Returns the turn that follows it in its lane, for steers."""
        turn, shared = self.turn, self._shared
        try:
            job = await self._prepare()
        except Exception as failure:
            self._refuse(self._error(failure))
            return None

        try:
            if shared.counts_only:
                await self._count(job)
                return None
            ended = await self._respond(job)
        except Exception as failure:
            error = self._error(failure)
            error = request_validation.in_terms_of_input(turn, error) if failure is error else error
            if not turn.is_created:
                self._refuse(error)
                return None
            ended = self._fail(error, keeps_steps=True)
        if ended.state is not None and turn.saves:
            try:
                await Save(turn, ended.state)
                turn.stages.lap("store")
            except Exception as failure:
                ended = self._fail(self._error(failure), keeps_steps=False)

        shared.send(self._last_events(ended))
        with suppress(Interrupted):  # it has ended, whether or not that could be written
            await Flush(turn)
        return self._settle(ended)

    # Bind, validate.

    async def _prepare(self) -> Job | None:
        """Bind what the request continues, and validate it. Nothing has been sent yet, whatever fails.
        Returns its job; None if lists of tools must be fetched before there is one."""
        turn, shared = self.turn, self._shared
        turn.stages.lap("queue")
        if (refusal := shared.lifetime.refusal or turn.asked.error) is not None:
            raise refusal
        known, missing = preparation.look_up(turn, shared)
        self._pin(known.parent)
        if not turn.asked.forks:
            self._end_growth(turn.asked.request.previous_response_id)
        loaded = await missing if missing is not None else Loaded()
        turn.bound = preparation.bind(turn, known, loaded, shared)
        self._pin(turn.bound.parent)
        if missing is not None and turn.bound.parent is not None and not turn.asked.forks:
            self._end_growth(turn.bound.parent.id)  # a conversation is continued at its last response
        turn.stages.lap("resolve")
        with request_validation.in_clients_terms(turn.bound.inserted):
            await self._resolve_tools()
            for work in preparation.unopened_attachments(turn, shared):
                turn.bound = preparation.with_added(turn, shared, await work)
            turn.prepared, turn.planned = preparation.prepare(turn, shared)
            if not shared.counts_only:
                preparation.inspect(turn)
            if turn.prepared.grammars:
                await CompileGrammars(turn, turn.prepared.grammars)
        turn.stages.lap("validate")
        return turn.planned.job

    async def _resolve_tools(self) -> None:
        """Look up the hosted tools of the request, unless the turn before it has."""
        turn, hosted, request = self.turn, self.turn.hosted, self.turn.asked.request
        known, model = turn.bound.known_head, self._shared.models.find(request.model)
        are_clients = known is not None and known.tools.are_clients and known.has_tools_of(request)
        if are_clients or hosted.is_read:
            return
        hosted.read_servers(request, model.hosted_tools)
        if hosted.servers or hosted.builtins:
            found = await ResolveTools(turn, hosted.servers, frozenset(tool.kind for tool in hosted.builtins))
            hosted.resolve(found.servers, found.answers)

    def _plan(self) -> Job:
        """All lists of tools are there: plan the jobs, and return the first."""
        turn = self.turn
        turn.stages.lap("list")
        with request_validation.in_clients_terms(turn.bound.inserted):
            turn.planned = preparation.plan(turn, self._shared)
        assert turn.planned.job is not None
        return turn.planned.job

    async def _count(self, job: Job | None) -> None:
        """Count the tokens of the context, for a client that asks for nothing else."""
        turn, shared = self.turn, self._shared
        if job is None:
            await ListTools(turn, dict(turn.hosted.awaited))
            job = self._plan()
        tokens = await CountTokens(turn, turn.first_job(job))
        turn.stages.lap("weigh")
        self.release()
        shared.actions.append(Counted(tokens))

    # Generate, in steps.

    async def _respond(self, job: Job | None) -> Ended:
        """Generate the response, step by step, and close its output."""
        turn, shared = self.turn, self._shared
        if turn.asked.detached:
            shared.send(delivery.enqueue(turn))
        try:
            if job is None:
                job = await self._fetch_lists()
            job = await self._first_job(job) if job is not None else None
            while job is not None:
                await self._until_input_passed()
                await Generate(turn, job)
                job = await self._next_job()
        except CutShort:
            turn.break_off()
        closing, turn.ended = endings.finish(turn, shared.now)
        shared.send(closing)
        return turn.ended

    async def _fetch_lists(self) -> Job | None:
        """Begin a response whose tools are not known yet: only their servers know how long they take. Returns
        its job; None if it is steered before all lists have come."""
        turn, shared = self.turn, self._shared
        shared.successors.commit(turn)
        shared.send(delivery.opening(turn) + turn.open_lists())
        shared.begin_due(turn)
        try:
            await ListTools(turn, dict(turn.hosted.awaited))
        except CutShort:
            turn.stages.lap("list")
            shared.send(turn.end_waiting("steered"))
            return None
        return self._plan()

    async def _first_job(self, job: Job) -> Job | None:
        """The job to begin with: that of the answer, or of a summary; after the calls that the client has
        approved, that of the next step."""
        turn, shared = self.turn, self._shared
        if turn.claims:
            await self._until_input_passed(is_call=True)
            await ClaimApprovals(turn, turn.claims)
            shared.successors.commit(turn)
            shared.send(between_steps.open_approved(turn))
            shared.begin_due(turn)
            return await self._pause()
        if not turn.must_weigh:
            return turn.first_job(job)
        await self._until_input_passed()
        tokens = await CountTokens(turn, job)
        turn.stages.lap("weigh")
        return turn.first_job(job, tokens)

    async def _until_input_passed(self, *, is_call: bool = False) -> None:
        """Begin the inspections of the input, and wait for them if the policy wants the engine not to see
        what it refuses. Approved calls always wait."""
        turn, checks = self.turn, self.turn.checks
        self._shared.begin_due(turn)
        if checks is not None and checks.holds_work(is_call=is_call):
            try:
                while checks.gate.holds_input:
                    await stages.VERDICTS_ON_INPUT
            except CutShort:
                between_steps.withdraw(turn)
                raise
            turn.stages.lap("check")

    async def _next_job(self) -> Job | None:
        """The engine has finished a job: returns the next one; None if the response has ended."""
        turn, shared, checks = self.turn, self._shared, self.turn.checks
        if turn.is_compacting:
            emitted, job = turn.compacted()
            shared.send(emitted)
            if job is not None:
                return job
        if checks is not None and not checks.gate.is_settled:
            shared.begin_due(turn)
            while not checks.gate.is_settled:
                await stages.VERDICTS_ON_ANSWER
        if turn.planned.steps is None:
            return None
        most_bytes, may_wait = shared.limits.connection_cache_bytes, shared.lifetime.ending is None
        paused, emitted = between_steps.end_step(turn, self._waits_until(), most_bytes, may_wait=may_wait)
        shared.send(emitted)
        if not paused:
            return None
        shared.begin_due(turn)
        return await self._pause()

    async def _pause(self) -> Job | None:
        """Between two steps: wait for the hosted calls, then for the outputs that the client of a rollout
        appends, and ask whether the caller may go on. What is appended while the driver asks is read by the
        next step too. Returns its job; None if the response ends."""
        turn, shared = self.turn, self._shared
        growing, response_id = shared.growing_outputs, turn.output.response_id
        await self._until_calls_ended()
        if turn.output.calls_hosted:
            if turn.yields_to_steers:
                shared.send(turn.end_waiting("steered"))
            may_wait = shared.lifetime.accepts_turns
            shared.send(between_steps.calls_ended(turn, self._waits_until(), may_wait=may_wait))
        may_go_on = not shared.asks_each_turn
        while not (turn.may_resume and may_go_on):
            if turn.must_end:
                # Pieces of outputs that a rollout waits for can arrive after its end.
                if turn.planned.rollout is None:
                    self._end_growth(response_id)
                return None
            asks = turn.may_resume
            if asks:
                self._end_growth(response_id)
            else:
                shared.actions += growing.advance(response_id, shared.cache)
            try:
                await (Load(turn) if asks else stages.CLIENT)
            except Blocked:
                raise
            except (ApiError, Interrupted, CutShort):
                return None  # it ends with the steps that it has: its caller, too, may not go on
            may_go_on = may_go_on or asks
            shared.send(between_steps.commit_appended(turn))
        self._end_growth(response_id)
        return between_steps.resume(turn)

    async def _until_calls_ended(self) -> None:
        """Wait for the hosted calls of a step. The engine processes the results that are there while the
        other calls run."""
        turn, shared = self.turn, self._shared
        while turn.is_calling:
            before = turn.calls_running
            try:
                await stages.CALLS
            except CutShort:
                shared.send(turn.end_waiting("broken_off"))
                return
            if turn.is_calling and turn.calls_running < before:
                shared.actions += shared.growing_outputs.result(turn, shared.cache)

    def _waits_until(self) -> float:
        """When a rollout that pauses now stops waiting for its client."""
        return self._shared.now + self._shared.limits.rollout_wait_s

    # The end.

    def _error(self, failure: Exception) -> ApiError:
        """Why the turn fails, for its client."""
        if isinstance(failure, ApiError):
            forget_frames(failure)  # they refer to this program, whose frame refers to the error
            return failure
        if isinstance(failure, Interrupted):
            return failure.error
        self._shared.actions.append(LogFault(failure))
        return ServerError()

    def _refuse(self, error: ApiError) -> None:
        """End a turn whose response was never created."""
        turn, shared = self.turn, self._shared
        turn_reports.cut_off_stage(turn)
        turn.ended = Ended(error)
        emitted = shared.successors.return_steers(turn, error)
        if not turn.asked.follows:
            self._forget_continued(error)
            emitted.append(turn.refusal(error))
        self.release()
        turn.stages.lap("terminal")
        shared.send(emitted)
        shared.actions += shared.growing_outputs.end_unreachable(shared.cache)
        shared.record(turn, turn_reports.report(turn, error))

    def _fail(self, error: ApiError, *, keeps_steps: bool) -> Ended:
        """Close the output of a response that fails. If its finished steps are kept, they are saved before
        the terminal event."""
        turn, shared = self.turn, self._shared
        turn_reports.cut_off_stage(turn)
        if turn.is_calling:
            shared.actions.append(CancelCalls(turn))
        self._end_growth(turn.output.response_id)
        closing, turn.ended = endings.fail(turn, error, keeps_steps=keeps_steps)
        if turn.ended.state is None:
            self._forget_continued(error)
        else:
            closing += shared.successors.return_steers(turn, error)
        shared.send(closing)
        return turn.ended

    def _forget_continued(self, error: ApiError) -> None:
        """The turn leaves nothing to continue: its client may have to repeat what it continued."""
        asked = self.turn.asked
        self._shared.cache.forget_continued(asked.request.previous_response_id, asked.lane, error)

    def _last_events(self, ended: Ended) -> list[Event]:
        """The terminal event, and what follows it."""
        turn, shared = self.turn, self._shared
        last = [turn.terminal()]
        if ended.state is None and ended.error is not None:
            last += shared.successors.return_steers(turn, ended.error)
        turn.stages.lap("terminal")
        if shared.betas.timing:
            last.append(turn.output.timing_event(turn_reports.report(turn)))
        return last

    def _settle(self, ended: Ended) -> Turn | None:
        """The last events of the turn are on their way: remember its response, report the turn, and give its
        lane to its successor, if it has one."""
        turn, shared, state = self.turn, self._shared, ended.state
        report = turn_reports.report(turn)
        self.unpin()
        shared.charges.release(turn)
        if state is not None:
            shared.remember(turn, state)
        successor: Turn | None = None
        if (steers := turn.take_steers()) is not None:
            followed, refusal = state if not ended.has_failed else None, shared.lifetime.refusal
            about_steers, successor = shared.successors.after(turn, steers, followed, refusal)
            shared.send(about_steers)
        shared.record(turn, report)
        if successor is None:
            shared.lanes.release(turn)
        else:
            shared.lanes.succeed(turn, successor)
        return successor

    # What the turn holds.

    def _pin(self, state: ResponseState | None) -> None:
        """Count the state that the turn continues for as long as the turn runs."""
        if state is not None and self._pinned is None:
            self._pinned = self._shared.cache, state
            self._shared.cache.pin(state)

    def unpin(self) -> None:
        """Count it no longer. For a program that is closed, its ``Turns`` call this."""
        if self._pinned is not None:
            cache, state = self._pinned
            self._pinned = None
            cache.unpin(state)

    def _end_growth(self, response_id: str | None) -> None:
        """A response is continued, or has ended: nothing is prefilled for it any more."""
        if self._shared.growing_outputs.growing:
            self._shared.actions += self._shared.growing_outputs.end(response_id)

    def release(self) -> None:
        """Let go of all that a turn without a response holds, and let the next one of its lane run. If the
        end of a turn fails itself, its ``Turns`` call this."""
        self.unpin()
        self._shared.charges.release(self.turn)
        if self.turn in self._shared.lanes.running():
            self._shared.lanes.release(self.turn)
