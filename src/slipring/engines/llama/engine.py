"""The llama engine: llama.cpp by token ids, in a child process or in an external llama-server.

slipring renders, tokenizes and parses; llama.cpp evaluates. A chain stays in the slot that holds its KV, so
that only the new tokens of a continuation are prefilled. ``cached_tokens`` is what llama.cpp reports.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Raw, structs

from slipring.base.errors import PermissionDenied
from slipring.core.generation import ANY_ID, Begun, Capabilities, Delta, Emit, Job, Model, Prefill, deliver
from slipring.engines.base import Engine, Level
from slipring.engines.constraints.llama_grammar import constrains_calls, grammar_of
from slipring.engines.constraints.server_constraint import constraint_of
from slipring.engines.engine_hosts import Borrowed, Host, Share
from slipring.engines.llama import served_model
from slipring.engines.llama.answer import LlamaAnswer, LlamaReader, PrefillReader
from slipring.engines.llama.api import Api, completion_body
from slipring.engines.llama.options import LlamaOptions, read_options
from slipring.engines.llama.pictures import PICTURE_TYPES, RESENT, PicturedText, prompt_of
from slipring.engines.llama.slots_and_saved_contexts import SavedContexts, SlotRequest, Slots, common_tokens
from slipring.engines.llama.worker_shares import EmbeddedOwner
from slipring.engines.remote.streamed_answer import CutOff
from slipring.engines.scheduling.job_queue import JobQueue
from slipring.engines.tokens.job_rendering import (
    accepted,
    count,
    foresee,
    position_of,
    prefetch,
    render,
)
from slipring.observation import live_messages
from slipring.prompts.rendering import Rendered, Rendering

log = logging.getLogger("slipring")

T = TypeVar("T")
_PREFILL_TOKENS = 128
"""Tokens that are processed at a time beside the jobs: a job that arrives waits for no more. On a CPU,
llama.cpp reads portions of 64 a fifth slower than those of 128, which come close to the speed of whole
batches."""
_PREFILL_STEPS = 64
"""Steps of a long context at most: every step sends all ids."""
_LEAST_PREFILL_TOKENS = 16


class LlamaEngine(Engine):
    """Serves one model in one llama-server, one job per slot."""

    name = "llama"
    level = Level.TOKENS
    leaves_renderings = True

    model: served_model.ServedModel
    """Set by the constructor for a file, by ``start`` for an external server."""
    _pictured: PicturedText
    """Set by ``start`` if the model sees."""

    def __init__(self, options: LlamaOptions, borrowed: Borrowed | None = None) -> None:
        """``borrowed`` is this worker's share of a llama-server that several workers use. Without it the
        engine starts its own, unless the options name an external one."""
        self.options = options
        self.serves_one_tenant = options.serves_one_tenant
        self._tenant: str | None = None
        self._borrowed = borrowed
        self._models: list[Model] = []
        if options.is_external:
            self._host = Host(options.key(), options.model.rstrip("/"))
            self._api = Api(self._host)
            return
        model = served_model.from_file(
            options, lambda path, body: self._api.queries.query_from_thread(path, body)
        )
        if borrowed is None:
            owner = EmbeddedOwner(options, model.path, model.context)
            self._host, share = owner.process, owner.share(0)
        else:
            self._host, share = borrowed, borrowed.share
        self._api = Api(self._host)
        self._set_model(model, share)

    def _set_model(self, model: served_model.ServedModel, share: Share) -> None:
        """Set the model, and make the queue and the slots for it."""
        self.model = model
        self.renderer = model.renderer
        # llama.cpp reports no logprobs for tokens that it had drafted.
        capabilities = Capabilities(
            logprobs=not self.options.spec,
            images=model.sees,
            image_roles=model.renderer.image_roles,
            picture_types=PICTURE_TYPES,
            biased_ids=model.renderer.vocabulary.size or ANY_ID,
        )
        self._models = [
            Model(
                name=model.name,
                owner="llama.cpp",
                capabilities=capabilities,
                defaults=model.defaults,
                context_tokens=model.context,
                rewrites_answers=model.renderer.rewrites_answers,
                efforts=model.renderer.efforts,
            )
        ]
        self._queue = JobQueue(len(share.slots), self.options.max_waiting)
        self._summaries = asyncio.Semaphore(max(1, len(share.slots) - 1))
        """Summaries that are written at once: a slot is left for answers, if there are two."""
        self._prefilling = asyncio.Lock()
        directory = Path(share.directory) if share.directory else None
        self._saved_contexts = SavedContexts(self._api, share.saved_bytes, directory, share.mark)
        self._slots = Slots(share.slots, self._saved_contexts)

    @classmethod
    def from_options(cls, text: str) -> "LlamaEngine":
        return cls(read_options(text))

    @property
    def trouble(self) -> str | None:
        return self._host.trouble

    def models(self) -> Sequence[Model]:
        return self._models

    def status(self) -> live_messages.Engine:
        saved, saved_memory = self._saved_contexts.status()
        return structs.replace(
            super().status(),
            running=self._queue.running,
            waiting=self._queue.waiting,
            slots=self._slots.status(),
            saved=saved,
            saved_memory=saved_memory,
        )

    async def start(self) -> None:
        await self._host.start(on_loss=lambda: self._slots.reset())
        await self._api.start()
        if self.options.is_external:
            model = await served_model.from_server(self.options, self._api.queries)
            whole = Share(tuple(range(model.slots)), self.options.saved_mib * 2**20)
            self._set_model(model, whole if self._borrowed is None else self._borrowed.share)
        await prefetch(self.renderer)
        if self.model.sees:
            self._pictured = await PicturedText.of(self.renderer.vocabulary, self._api)

    async def close(self) -> None:
        await self._api.close()
        await self._host.close()

    async def generate(self, job: Job, emit: Emit) -> None:
        if self.serves_one_tenant:
            self._refuse_second_tenant(job.tenant)
        self._queue.require_room(job.tenant)
        if self.model.sees:
            await self._pictured.refuse_undecodable(job, partial(self._in_thread, job))
        rendering = await render(job, self.renderer, self.model.context, self.tokenizing)
        constraint = await self._constraint(job, rendering)
        async with self._summaries if job.is_summary else nullcontext():
            with self._queue.ticket(job.tenant) as ticket:
                resent = RESENT if job.parent is not None and rendering.prompt.body.pictures else None
                await deliver(emit, [accepted(job, self.renderer, rendering, resent)])
                await ticket.turn()
                await self._queue.spare_ended()  # the slot of a prefill can be copied, or used, once free
                last = await self._answer(job, rendering, constraint, emit)
        # After slot and ticket are given back: a slow reader must not hold up other jobs.
        await deliver(emit, last)

    async def _in_thread(self, job: Job, work: Callable[..., T], *arguments: object) -> T:
        """Do work that takes time in proportion to pictures."""
        return await self.tokenizing.run(job.tenant, work, *arguments, is_local=True)

    def _refuse_second_tenant(self, tenant: str) -> None:
        """Serve the first tenant only: keys of others may have been created since the start."""
        self._tenant = self._tenant or tenant
        if tenant != self._tenant:
            log.error("a second tenant is refused: spec=%s serves one tenant only", self.options.spec)
            raise PermissionDenied("This model serves another tenant only.")

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await count(job, self.renderer, self.model.context, self.tokenizing, enough)

    async def prefill(self, prefill: Prefill) -> int:
        if self.serves_one_tenant:
            self._refuse_second_tenant(prefill.job.tenant)
        foreseen = await foresee(prefill, self.renderer, self.model.context, self.tokenizing)
        if foreseen is None:
            return prefill.done_tokens
        job, context = prefill.job, foreseen.context
        held = position_of(job)
        known = 0 if held is None else held.total if foreseen.parent else common_tokens(held, context)
        done = max(known, prefill.done_tokens)
        # In steps, so that a job which interrupts one finds the steps before it in the slot.
        step_tokens = max(_PREFILL_TOKENS, context.total // _PREFILL_STEPS)
        while context.total - done >= _LEAST_PREFILL_TOKENS:
            sent = foreseen.first(min(done + step_tokens, context.total))
            # What the slot holds for certain. A context that continues its parent counts as the parent: more
            # in the slot than that does no harm, and the next job looks for its parent.
            before = foreseen.parent or foreseen.first(done)
            after = foreseen.parent or sent
            async with self._prefilling:
                process = partial(self._process, job, sent, SlotRequest(job.tenant, sent, held, fork=False))
                if await self._queue.run_spare(0, partial(process, before, after)):
                    done, held = sent.total, after
        return done

    async def _process(
        self, job: Job, sent: Rendered, request: SlotRequest, before: Rendered, after: Rendered
    ) -> None:
        """Have llama.cpp process a context in a slot. ``before``: what the slot holds if this is cancelled;
        ``after``: what it holds at the end."""
        async with self._slots.acquire(request) as slot:
            body = completion_body(
                sent.json(),
                job.settings,
                self.model.sampling,
                id_slot=slot.number,
                cache_prompt=slot.tenant == job.tenant,
                n_predict=0,
            )
            slot.mark_uncertain(job.tenant, before if slot.tenant == job.tenant else None)
            await self._api.complete(body, PrefillReader(slot, job.tenant))
            slot.record(after, job.tenant)

    async def _answer(
        self, job: Job, rendering: Rendering, constraint: dict[str, object], emit: Emit
    ) -> list[Delta]:
        """Acquire a slot and emit the answer that llama.cpp generates in it. Returns the last deltas."""
        sent = rendering.prompt if job.generate else rendering.context
        room = self.model.context - sent.id_count  # pictures take more: llama.cpp ends the answer earlier
        limit = min(job.settings.max_output_tokens or room, room) if job.generate else 0
        parent = position_of(job) if rendering.fallback is None else None
        if job.recognised:  # like any history that is sent whole: it usually replaces the one before
            request = SlotRequest(job.tenant, sent, None, fork=False)
        else:
            request = SlotRequest(job.tenant, sent, parent, job.fork)
        prompt = sent.json() if not sent.body.pictures else await self._pictured_prompt(job, sent)
        async with self._slots.acquire(request) as slot:
            slot.response_id = job.response_id
            await deliver(emit, [Begun()])
            body = completion_body(
                prompt,
                job.settings,
                self.model.sampling,
                id_slot=slot.number,
                cache_prompt=slot.tenant == job.tenant,
                # One token more than the limit: to sample it, the engine evaluates the one before, whose KV
                # the next turn then finds in the slot.
                n_predict=min(limit + 1, room) if job.generate else 0,
                **constraint,
            )
            slot.mark_uncertain(job.tenant, request.certain_context(slot))
            self._host.rejects_grammar(slot.number)  # of an earlier job that ended before its first token
            trusted = "grammar" in constraint and constrains_calls(job)
            answer = LlamaAnswer(job, rendering, self.renderer, limit, trusted=trusted)
            try:
                with suppress(CutOff):
                    await self._api.complete(body, LlamaReader(job, answer, slot, self._host, emit))
                last, context = answer.finish()
            except BaseException:
                # Clients repeat what they gave up, as Codex does with its warmup: they find the tokens again.
                is_plain = not sent.body.pictures
                if is_plain and parent is None and answer.prefilled and slot.tenant == job.tenant:
                    slot.context = sent.first(answer.prefilled)
                raise
            slot.record(context or sent, job.tenant)
        return last

    async def _pictured_prompt(self, job: Job, sent: Rendered) -> bytes:
        """A context with pictures as llama.cpp takes it."""
        work = partial(self._pictured.write, sent.ids())
        text = await self.tokenizing.run(job.tenant, work, is_local=self.renderer.vocabulary.is_local)
        return await self._in_thread(job, prompt_of, job, sent, text)

    async def _constraint(self, job: Job, rendering: Rendering) -> dict[str, object]:
        """The field of the request that constrains the answer; empty if it is unconstrained."""
        if not job.generate:
            return {}
        if self.model.llguidance:
            opens_thought = self.renderer.opens_thought(rendering.prompt)
            grammar = await grammar_of(job, self.renderer, self.compiler, opens_thought=opens_thought)
            return {"grammar": grammar} if grammar is not None else {}
        constraint = await constraint_of(job, self.renderer, self.compiler, grammars=False)
        return {"json_schema": Raw(constraint.text)} if constraint is not None else {}
