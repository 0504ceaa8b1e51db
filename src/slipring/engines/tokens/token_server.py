"""What vllm and sglang share: they send token ids to a server, and get back the ids that it emits.

A turn of a chain sends its new ids only, in a session, if the server has them.

Each engine adds how it writes a request and how it parses the stream.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple

from slipring.base.errors import ApiError, ServerError, StartupError
from slipring.core.generation import (
    ANY_ID,
    Capabilities,
    Delta,
    Emit,
    Finished,
    Job,
    Model,
    Prefill,
    deliver,
)
from slipring.engines.base import Level
from slipring.engines.constraints.required_answer_shapes import may_be_constrained
from slipring.engines.constraints.server_constraint import Constraint
from slipring.engines.constraints.supported_constraints import TRIED_TOKENS, ServerConstraints
from slipring.engines.remote.http_client import Answered
from slipring.engines.remote.http_connection import HttpFailure
from slipring.engines.remote.replica_affinity import (
    affinity_key,
    answering_replica,
    branch_keys,
    read_header_names,
)
from slipring.engines.remote.retries_and_breaker import Admission, Retryable
from slipring.engines.remote.streamed_answer import CutOff
from slipring.engines.remote.upstream import RemoteEngine, Upstream
from slipring.engines.remote.upstream_errors import startup_errors
from slipring.engines.scheduling.chain_ends import ChainEnds, gone_at_end
from slipring.engines.scheduling.job_queue import Ticket
from slipring.engines.scheduling.loop_schedule import Loop, Need, Rules
from slipring.engines.scheduling.priorities_and_hints import AnswerLengths, goes_on
from slipring.engines.scheduling.replica_placement import ReplicaSchedules
from slipring.engines.tokens.job_exchange import JobExchange, Request
from slipring.engines.tokens.job_rendering import accepted, count, foresee, position_of, prefetch, render
from slipring.engines.tokens.model_files import ModelInfo
from slipring.engines.tokens.sampling import Sampling
from slipring.engines.tokens.server_options import TokenServerOptions
from slipring.engines.tokens.sessions import (
    Addressed,
    SessionExchange,
    SessionProtocol,
    Sessions,
)
from slipring.engines.tokens.template_choice import (
    check_rendering,
    make_renderer,
    make_serving_renderer,
    picture_forms,
)
from slipring.engines.tokens.token_answer import Piece, TokenAnswer, TokenReader, read_payload
from slipring.prompts.foreseen_context import Foreseen
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol.responses import TopLogprob

log = logging.getLogger("slipring")

_ROUTER_LIST = "/workers"
"""Where routers list the replicas behind them: smg, vllm-router, SGLang's."""
_BLOCK_TOKENS = 16
_LEAST_PREFILL_TOKENS = 128
"""Fewer new tokens are not worth a request that sends all ids."""
_MOST_PREFILLS = 4
_EXPECTED_TOKENS = 256
"""Tokens of an answer for which there has to be room in the server's cache."""
_SCHEDULED = 0.95
"""The part of the server's cache that is scheduled: it keeps whole blocks, and other users may need some."""
_COMPACTION = "compaction"
"""What a loop waits for after its summary, as with the name of a tool: the turn that goes on with it."""
_LEAST_AHEAD = 64
"""A session reads ahead no fewer tokens at once."""
_MOST_AHEAD = 1024
"""And no more: the next turn waits until they are read."""
_OWN_SETTINGS = "strict tools, required calls, formats, grammars, seeds, biases or log probabilities"


class Served(NamedTuple):
    """A model as its server describes it."""

    name: str
    context: int
    root: str
    """Where it was loaded from."""


class Unended(Retryable):
    """The server has ended a stream before its answer."""

    def __init__(self) -> None:
        super().__init__("The engine ended its answer without a finish reason.")


class Offer(NamedTuple):
    """The sessions that a server offers."""

    most: int | None = None
    """How many may be open; None if the server does not say."""
    most_tokens: int | None = None
    """How many tokens all of them may hold; None if the server does not say."""
    refused: str = ""
    """Why there are none, in one line; empty if there are."""
    is_fault: bool = False
    """Whether operators should know that there are none: the server was started with sessions."""
    whole: str = ""
    """Why turns with settings of their own are sent whole, in one line; empty if they are not."""


class TokenServer(RemoteEngine):
    """One server and the model that it serves."""

    level = Level.TOKENS
    leaves_renderings = True
    maker: ClassVar[str]
    """What the server should be, for messages: "a vLLM server"."""
    spared: ClassVar[int] = 0
    """How many tokens of the context the server does not give to prompts."""
    served: Served
    """Set by ``start``, like the renderer and the sampling."""
    renderer: Renderer
    sampling: Sampling
    """Recommended by the model's authors."""
    answer_lengths: AnswerLengths | None = None
    """Learnt if the engine tells the server how long an answer will be."""
    chain_ends: ChainEnds | None = None
    """Set by ``start`` if the engine reports the ends of chains to the server."""
    schedule: ReplicaSchedules | None = None
    """Decides which turns run, if it is known how much the server's cache holds."""
    _loop_ends: ChainEnds | None = None
    """Set by ``start`` together with the schedule, to which it reports the ends of loops."""
    sessions: Sessions | None = None
    """Set by ``start`` if the server has them and they are wanted."""
    offer: Offer = Offer()
    """Set by ``ask_for_sessions``."""

    def __init__(self, options: TokenServerOptions) -> None:
        check_rendering(self.name, options)
        self.options = options
        self._upstream = Upstream(self.name, options)
        self._admission = Admission(f"{self.maker} at {options.url}", options, self._probe)
        self._models: list[Model] = []
        self._prefilling = asyncio.Semaphore(_MOST_PREFILLS)
        self._constraints = ServerConstraints(self._may_send_tags, self._try_out)
        self._replica_headers = read_header_names(options.replica_header)

    @classmethod
    @abstractmethod
    def from_options(cls, text: str) -> "TokenServer":
        """Parse what follows ``KIND:``."""

    def models(self) -> Sequence[Model]:
        return self._models

    async def start(self) -> None:
        vocabulary, info = await self.connect()
        served = self.served
        self.sampling = info.sampling
        # In a thread: it is CPU time, and may need the server's tokenizer.
        forms = picture_forms(info) if await self._takes_images() else ()
        self.renderer = await asyncio.to_thread(
            make_serving_renderer, self.name, self.options, info, vocabulary, forms
        )
        model = Model(
            name=served.name,
            owner=self.name,
            capabilities=Capabilities(
                logprobs=True,
                images=self.renderer.takes_pictures,
                image_roles=self.renderer.image_roles,
                biased_ids=vocabulary.size or ANY_ID,
            ),
            defaults=info.sampling.defaults(),
            context_tokens=served.context,
            rewrites_answers=self.renderer.rewrites_answers,
            efforts=self.renderer.efforts,
        )
        self._models = [model]
        await prefetch(self.renderer)
        if self.options.scheduling and (tokens := self.options.kv_tokens or await self.cache_tokens()):
            rules = Rules(int(tokens * _SCHEDULED), self.options.max_jobs)
            self.schedule = ReplicaSchedules(rules, self._context_demoted, await self._count_replicas())
            self._admission.follow(self.schedule)
            self._loop_ends = ChainEnds(self._loop_ended)
        await self._start_sessions()

    async def _start_sessions(self) -> None:
        await self.ask_for_sessions()
        options, offer = self.options, self.offer
        if offer.refused:
            if options.sessions == "on":
                raise StartupError(f"--engine {self.name}: {options.url}: {offer.refused}")
            if offer.is_fault:
                log.warning("%s: sessions are not used: %s", options.url, offer.refused)
            return
        if offer.whole:
            log.warning("%s: sessions are %s", options.url, self.session_use)
        self.sessions = Sessions(
            self.session_protocol(),
            most=options.max_sessions if offer.most is None else min(options.max_sessions, offer.most),
            most_tokens=offer.most_tokens,
            idle_s=options.session_idle_s,
            schedule=self.schedule,
        )

    async def ask_for_sessions(self) -> None:
        """Find out which sessions the server offers."""
        if self.options.sessions == "off" or not self.options.max_sessions:
            self.offer = Offer(refused="they are switched off")
        else:
            self.offer = await self.offered_sessions()

    @property
    def session_use(self) -> str:
        if self.offer.refused:
            return f"not used: {self.offer.refused}"
        if self.sessions is not None and (refusal := self.sessions.refusal):
            return f"not opened at present: {refusal}"
        if self.offer.whole:
            return f"used, but turns with {_OWN_SETTINGS} are sent whole: {self.offer.whole}"
        return "used"

    @abstractmethod
    async def offered_sessions(self) -> Offer:
        """Ask the server for its sessions. The option ``sessions`` is ``auto`` or ``on``."""

    @abstractmethod
    def session_protocol(self) -> SessionProtocol:
        """How its sessions are opened and closed."""

    @abstractmethod
    def write_in_session(
        self, job: Job, sent: Rendered, addressed: Addressed, limit: int, constraint: Constraint | None
    ) -> Request:
        """Encode the request with the ids that the session does not hold yet. ``limit`` is 0 if nothing is to
        become part of the session but these ids."""

    def takes_session(self, job: Job, constraint: Constraint | None) -> bool:
        """Whether the server can answer this job in a session."""
        return True

    async def _takes_images(self) -> bool:
        """Whether the model sees pictures."""
        images = self.options.images
        return images == "on" or (images == "auto" and await self.sees())

    async def sees(self) -> bool:
        """Whether the server's model takes pictures, as far as the server tells."""
        return False

    async def picture_use(self, vocabulary: Vocabulary, info: ModelInfo) -> str:
        """How pictures get to the model, in one line. Called after ``connect``, with what that returns."""
        if not await self._takes_images():
            return "none: the model does not see"
        make = partial(make_renderer, self.name, self.options, info, vocabulary, picture_forms(info))
        renderer = await asyncio.to_thread(make)
        if not renderer.takes_pictures:
            return "none: the template writes no pictures"
        return await self.picture_way(renderer)

    @abstractmethod
    async def picture_way(self, renderer: Renderer) -> str:
        """How pictures get to a model that sees, in one line."""

    def resent(self, job: Job, sent: Rendered) -> str | None:
        """Why the server is sent all of a context in another form than its ids; None if it is not."""
        return None

    async def _count_replicas(self) -> int:
        """How many replicas are behind the address, if that is a router which lists them."""
        try:
            listed = (await self.query(_ROUTER_LIST))["workers"]
            return max(sum(worker.get("is_healthy", True) is True for worker in listed), 1)
        except (HttpFailure, LookupError, TypeError, AttributeError):
            return 1

    async def connect(self) -> tuple[Vocabulary, ModelInfo]:
        """Connect to the server, and find its model, that model's vocabulary and what is known about it."""
        await self._upstream.start()
        self.served = await self._find_model()
        return await self.find_vocabulary()

    async def close(self) -> None:
        if self.sessions is not None:
            await self.sessions.close()
        for ends in (self.chain_ends, self._loop_ends):
            if ends is not None:
                await ends.close()
        await self._admission.close()
        await self._upstream.close()

    async def generate(self, job: Job, emit: Emit) -> None:
        expected = self._need(job, 0)
        self._admission.require_admission(job.tenant, need=expected)
        if self.schedule is not None and expected is not None:
            self.schedule.expect(expected, asyncio.get_running_loop().time())
        rendering = await render(job, self.renderer, self.served.context - self.spared, self.tokenizing)
        sent = rendering.prompt if job.generate else rendering.context
        constraint: Constraint | None = None
        if job.generate and may_be_constrained(job):
            constraint = await self._constraints.of(job, rendering, self.renderer, self.compiler)
        limit = self._limit(job, sent)
        need = self._need(job, sent.total + min(limit, _EXPECTED_TOKENS))
        with self._admission.admission(job.tenant, need=need) as ticket:
            await ticket.begin(accepted(job, self.renderer, rendering, self.resent(job, sent)), emit)
            if not sent.total:  # a warmup of an empty context, which servers refuse
                await deliver(emit, [Finished("stop", 0, 0, 0, position=sent, context=sent)])
                return
            answer = TokenAnswer(
                job,
                rendering,
                self.renderer,
                constrained=constraint is not None and constraint.kind != "tag",
                trusted=constraint is not None and constraint.makes_calls_certain,
            )

            # Encoded only now, because it takes memory: all ids as text.
            with closing(self.exchange(job, sent, limit, constraint, answer)) as exchange:
                exchange.answered = partial(self._answered, ticket)
                exchange.loop = ticket.loop
                await exchange.prepare()  # its answer is not due yet
                with suppress(CutOff):
                    await self._admission.run(partial(exchange.attempt, emit), ticket=ticket)
                last = answer.finish()
                exchange.keep(last)
                self._ended(job, last, answer, ticket)
        # After the ticket is given back: a slow reader must not hold up other jobs.
        await deliver(emit, last)

    def _need(self, job: Job, tokens: int) -> Need | None:
        """What a job needs of the server's cache, if its jobs are scheduled."""
        if self.schedule is None:
            return None
        parent, position = job.parent, position_of(job)
        root_id = job.response_id if parent is None else parent.root_id
        branch, before = job.branch, None if parent is None else parent.branch
        while parent is not None and parent.position is None:
            parent = parent.parent  # it has ended before it was sent here, and named no loop
        return Need(
            key=job.response_id,
            tokens=tokens,
            after=parent.id if parent is not None and goes_on(job) and not job.fork else "",
            # The branch that a chain begins with is named by the chain's root.
            branch=root_id if branch.parent is None else branch.id,
            source="" if before is None else root_id if before.parent is None else before.id,
            shared=0 if position is None else position.total,
            replaces=job.recognised and goes_on(job),
            route=affinity_key(job),
        )

    def _answered(self, ticket: Ticket, headers: Mapping[str, str]) -> None:
        """A server has begun to answer a job: its replica is known."""
        replica = answering_replica(headers, self._replica_headers)
        if replica is not None:
            told = None if self.options.kv_tokens else replica.kv_tokens
            self._admission.placed(ticket, replica.name, None if told is None else int(told * _SCHEDULED))

    def _ended(self, job: Job, last: list[Delta], answer: TokenAnswer, ticket: Ticket) -> None:
        """A job has ended: its chain goes on later, or ends some time."""
        finished = last[-1]
        assert isinstance(finished, Finished)
        position = finished.position
        assert isinstance(position, Rendered)
        if job.generate and self.answer_lengths is not None:
            self.answer_lengths.observe(finished.output_tokens)
        if self.chain_ends is not None:
            self.chain_ends.watch(branch_keys(job)[0], position)
        if self.schedule is not None and self._loop_ends is not None and ticket.scheduled is not None:
            if (former := ticket.scheduled.loop.former) != job.response_id:
                self._loop_ends.forget(former)
            self._loop_ends.watch_only(job.response_id, gone_at_end(job, position))
            ticket.outcome = position.total, (_COMPACTION,) if job.is_summary else answer.called
            prefilled = finished.input_tokens - finished.cached_tokens
            self.schedule.measured(ticket.scheduled, prefilled, ticket.begun_at - ticket.sent_at)

    async def _loop_ended(self, key: str) -> None:
        if self.schedule is not None:
            self.schedule.drop(key)

    def _context_demoted(self, loop: Loop) -> None:
        """The context of a loop need not be kept any longer. Servers evict by themselves what no session
        holds."""
        if self.sessions is not None:
            self.sessions.release(loop)

    @abstractmethod
    async def cache_tokens(self) -> int | None:
        """How many tokens the server's KV cache holds; None if the server does not report it."""

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await count(job, self.renderer, self.served.context, self.tokenizing, enough)

    def output_grew(self, response_id: str) -> None:
        if self.schedule is not None:
            self.schedule.output_grew(response_id, asyncio.get_running_loop().time())

    def was_steered(self, response_id: str) -> None:
        if self.schedule is not None:
            self.schedule.was_steered(response_id)

    async def prefill(self, prefill: Prefill) -> int:
        foreseen = await self._foresee(prefill)
        if foreseen is None:
            return prefill.done_tokens
        job, sessions, position = prefill.job, self.sessions, position_of(prefill.job)
        # A context that is rewritten is not a session's; a session's context need not be in the prefix cache.
        is_appended = prefill.expects == "output" and position is not None
        if sessions is not None and is_appended and position is not None and sessions.has(job, position.body):
            if foreseen.parent is None:
                return prefill.done_tokens
            done = max(position.total, prefill.done_tokens)
            return await self._prefill_session(sessions, job, foreseen, done)
        known = 0 if foreseen.parent is None else foreseen.parent.total
        return await self._prefill_cache(job, foreseen, max(known, prefill.done_tokens))

    async def _prefill_cache(self, job: Job, foreseen: Foreseen, done: int) -> int:
        total = foreseen.context.total
        total -= total % _BLOCK_TOKENS  # servers cache whole blocks only
        if total - done < _LEAST_PREFILL_TOKENS:
            return done
        request = self.write(job, foreseen.first(total), 1, None)
        async with self._prefilling:
            completed = await self._admission.run_spare(
                self.options.max_jobs // 2, lambda: self.process(request)
            )
        return total if completed else done

    async def _prefill_session(self, sessions: Sessions, job: Job, foreseen: Foreseen, done: int) -> int:
        async with self._prefilling:
            while foreseen.context.total - done >= _LEAST_AHEAD:
                step = min(done + _MOST_AHEAD, foreseen.context.total)
                if not await self._read_ahead(sessions, job, foreseen.first(step)):
                    break
                done = step
        return done

    async def _read_ahead(self, sessions: Sessions, job: Job, sent: Rendered) -> bool:
        was_read = False

        async def send(addressed: Addressed) -> None:
            pieces = await self.ask_aside(self.write_in_session(job, sent, addressed, 0, None))
            if all(piece.reason is None for piece in pieces):
                raise Unended

        async def read() -> None:
            nonlocal was_read
            was_read = await sessions.read_ahead(job, sent, send)

        return await self._admission.run_spare(self.options.max_jobs // 2, read) and was_read

    async def _foresee(self, prefill: Prefill) -> Foreseen | None:
        """What is certain of the context; None if there is nothing to do, or the server does not answer."""
        if self._admission.trouble is not None:
            return None
        return await foresee(prefill, self.renderer, self.served.context - self.spared, self.tokenizing)

    async def process(self, request: Request) -> None:
        """Send a request for the sake of what the server keeps of it, and drop its answer."""
        await self._aside(request)

    async def ask_aside(self, request: Request) -> list[Piece]:
        """Send a request that no client waits for, and parse its answer."""
        parser = request.read()
        return [read_payload(parser, payload) for payload in await self._aside(request)]

    async def _aside(self, request: Request) -> list[bytes]:
        """Send a request without admission. Its answer is short: all of it must come in the time that other
        answers have to begin. Raises an ``ApiError`` otherwise."""
        answer = _WholeAnswer()
        try:
            async with asyncio.timeout(self.options.first_token_timeout_s):
                await self._upstream.stream(request.path, request.pieces, request.headers, answer)
        except TimeoutError:
            raise ServerError("The engine did not answer in time.") from None
        return answer.payloads

    async def _try_out(self, job: Job, prompt: Rendered, constraint: Constraint) -> str | None:
        """The first tokens of an answer as text; None if the server fails."""
        request = self.write(job, prompt, TRIED_TOKENS, constraint)
        try:
            pieces = await self.ask_aside(request)
        except ApiError:
            return None
        if not self.renderer.vocabulary.is_local:
            return "".join(piece.text for piece in pieces)
        ids = [id for piece in pieces for id in piece.ids]
        return self.renderer.token_bytes.join(ids).decode("utf-8", "replace")

    async def _may_send_tags(self) -> bool:
        return self.options.structural_tags and await self.takes_tags()

    @abstractmethod
    async def takes_tags(self) -> bool:
        """Whether the server's version takes structural tags. Raises ``HttpFailure`` if it does not tell."""

    @abstractmethod
    async def find_vocabulary(self) -> tuple[Vocabulary, ModelInfo]:
        """The model's vocabulary, chat template and sampling, from files or from the server.
        Called by ``connect``."""

    @abstractmethod
    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        """Encode the request for at most ``limit`` tokens after ``sent``."""

    def exchange(
        self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None, answer: TokenAnswer
    ) -> JobExchange:
        """How the request is sent and answered."""
        write = partial(self.write, job, sent, limit, constraint)
        if self.sessions is None or not self.takes_session(job, constraint):
            return JobExchange(self.attempt, job, write, answer)

        def write_new(addressed: Addressed) -> Request:
            # A warmup leaves nothing that it emits in the session.
            return self.write_in_session(job, sent, addressed, limit if job.generate else 0, constraint)

        return SessionExchange(self.attempt, job, write, answer, self.sessions, sent, write_new)

    async def choose_model(self, listed: Any) -> Served:
        """The configured model, of those that ``/v1/models`` lists, or the first."""
        options = self.options
        known = {card["id"]: card for card in listed["data"]}
        cards = [card for name, card in known.items() if options.model in ("", name)]
        if not cards:
            raise StartupError(f"--engine {self.name}: {options.url} serves no model '{options.model}'")
        card = cards[0]
        # vLLM tells the context window of an adapter only with its model.
        tokens = card.get("max_model_len") or known.get(card.get("parent"), {}).get("max_model_len")
        context = options.context or int(tokens or 0)
        if not context:
            raise StartupError(
                f"--engine {self.name}: {options.url} reports no context window; give it with context="
            )
        return Served(card["id"], context, str(card.get("root") or card["id"]))

    async def query(self, path: str) -> Any:
        """GET a JSON document from the server. Raises ``HttpFailure``."""
        return await self._upstream.client.query(path)

    def top_logprob(self, id: int, logprob: float) -> TopLogprob:
        """A token of a local vocabulary as text and bytes, with its logprob."""
        token = self.renderer.bytes_of(id)
        return TopLogprob(token.decode("utf-8", "replace"), logprob, list(token))

    def _limit(self, job: Job, sent: Rendered) -> int:
        """How many tokens to generate. One for a warmup, which is dropped: servers prefill for no less."""
        room = self.served.context - sent.total
        return min(job.settings.max_output_tokens or room, room) if job.generate else 1

    async def _find_model(self) -> Served:
        options = self.options
        if options.model and options.context:
            return Served(options.model, options.context, options.model)
        with startup_errors(self.name, options.url, self.maker):
            return await self.choose_model(await self.query("/v1/models"))

    async def _probe(self) -> None:
        # Any status below 500 will do: a gateway in front of the server may not know the path.
        status = await self._upstream.client.status("/health")
        if status >= 500:
            raise Retryable(f"/health answers with {status}")

    async def attempt(self, request: Request, reader: TokenReader, answered: Answered | None) -> None:
        """Send a request once. Raises ``CutOff`` where the answer is cut."""
        await self._upstream.stream(request.path, request.pieces, request.headers, reader, answered=answered)
        if not reader.answer.has_ended:
            raise Unended


class _WholeAnswer:
    """Collects an answer that no client waits for. Implements ``streamed_answer.Consumer``."""

    has_ended = False
    fault: Exception | None = None

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def take(self, payloads: list[bytes]) -> None:
        self.payloads += payloads
