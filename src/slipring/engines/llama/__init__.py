"""The llama engine: llama.cpp by token ids, in a child process of its own or in a server elsewhere.

We render, tokenize and parse; llama.cpp evaluates. A chain stays in the slot that holds its KV, so that a
continuation is prefilled from where its parent ended. What the engine reports as cached is what clients are
told.
"""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from slipring.core.generation import Accepted, Begun, Capabilities, Delta, Job, Model
from slipring.engines.base import Engine, Level
from slipring.engines.constraint import schema_of
from slipring.engines.gate import Places
from slipring.engines.llama import models
from slipring.engines.llama.answer import Answer
from slipring.engines.llama.api import Api
from slipring.engines.llama.grammar import constrains_calls, grammar_of
from slipring.engines.llama.options import Options, read_options
from slipring.engines.llama.process import ChildSettings, Process, kv_directory
from slipring.engines.llama.remote import External
from slipring.engines.llama.requests import completion_body
from slipring.engines.llama.shelf import Shelf
from slipring.engines.llama.slots import Slots, Wish
from slipring.engines.tokens import count, learn, render
from slipring.errors import StartupError
from slipring.prompts.rendering import Rendered, Rendering


class LlamaEngine(Engine):
    """One model, a few slots."""

    name = "llama"
    level = Level.TOKENS

    def __init__(self, options: Options) -> None:
        self.options = options
        directory: Path | None = None
        limit_bytes = options.saved_mib * 2**20
        if options.is_elsewhere:
            key = _key_from(options.key_env)
            self.model = models.from_server(options, key)
            self._host: Process | External = External(options.model, key)
        else:
            self.model = models.from_file(options, lambda: (self._host.url, self._host.key))
            directory = kv_directory(limit_bytes) if limit_bytes else None
            self._host = Process(
                ChildSettings(
                    path=self.model.path,
                    context=self.model.context,
                    slots=self.model.slots,
                    threads=options.thread_count,
                    gpu_layers=options.gpu_layers,
                    chunk=options.chunk,
                    directory=str(directory or ""),
                ),
                on_restart=lambda: self._slots.forget(),
            )
        self.renderer = self.model.renderer
        self._api = Api(self._host)
        self._places = Places(self.model.slots, options.max_waiting)
        self._slots = Slots(self.model.slots, Shelf(self._api, limit_bytes, directory))

    @classmethod
    def from_options(cls, text: str) -> "LlamaEngine":
        return cls(read_options(text))

    @property
    def trouble(self) -> str | None:
        return self._host.trouble

    def models(self) -> Sequence[Model]:
        return [
            Model(
                name=self.model.name,
                owner="llama.cpp",
                capabilities=Capabilities(logprobs=True),
                context_tokens=self.model.context,
            )
        ]

    async def start(self) -> None:
        if isinstance(self._host, Process):
            await self._host.start()
        await self._api.start()
        await learn(self.renderer)

    async def close(self) -> None:
        await self._api.close()
        if isinstance(self._host, Process):
            await self._host.close()

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        rendering = await render(job, self.renderer, self.model.context)
        constraint = self._constraint(job, rendering)
        with self._places.ticket(job.tenant) as ticket:
            yield [Accepted(rendering.new_tokens, rendering.fallback, rendering.dropped_items)]
            await ticket.turn()
            async with aclosing(self._answer(job, rendering, constraint)) as batches:
                async for deltas in batches:
                    yield deltas

    async def count(self, job: Job) -> int:
        return await count(job, self.renderer)

    async def _answer(
        self, job: Job, rendering: Rendering, constraint: dict[str, object]
    ) -> AsyncGenerator[list[Delta], None]:
        """Have an answer made in a slot."""
        sent = rendering.prompt if job.generate else rendering.context
        room = self.model.context - sent.total
        limit = min(job.settings.max_output_tokens or room, room) if job.generate else 0
        position = job.parent.position if job.parent is not None else None
        parent = position if isinstance(position, Rendered) and rendering.fallback is None else None
        wish = Wish(job.tenant, sent, parent, job.fork)
        async with self._slots.taken(wish) as slot:
            yield [Begun()]
            body = completion_body(
                sent,
                job.settings,
                id_slot=slot.number,
                cache_prompt=slot.tenant == job.tenant,
                # One token more than may be said: to choose it, the engine reads the last one that was.
                n_predict=min(limit + 1, room) if job.generate else 0,
                **constraint,
            )
            slot.doubt(job.tenant, wish.sure_of(slot))
            trusted = "grammar" in constraint and constrains_calls(job)
            answer = Answer(job, rendering, self.renderer, limit, trusted=trusted)
            async with aclosing(self._api.complete(body)) as chunks:
                async for chunk in chunks:
                    slot.tenant = job.tenant  # it has begun, and has left nothing of anybody else's
                    if deltas := answer.take(chunk):
                        yield deltas
            last, held = answer.finish()
            slot.hold(held or sent, job.tenant)
        yield last  # whoever takes long to read it has given the slot back

    def _constraint(self, job: Job, rendering: Rendering) -> dict[str, object]:
        """What keeps an answer to its form, as a field of the request."""
        if not job.generate:
            return {}
        if self.model.llguidance:
            grammar = grammar_of(
                job, self.renderer, opens_thought=self.renderer.opens_thought(rendering.prompt)
            )
            return {"grammar": grammar} if grammar is not None else {}
        schema = schema_of(job, self.renderer.calls)
        return {"json_schema": schema} if schema is not None else {}


def _key_from(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise StartupError(f"--engine llama: the variable {variable} (key_env) is empty")
    return key
