"""A fake llama-server whose slots are lists of token ids, and jobs that use it through the real slots."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from slipring.base.errors import Unavailable
from slipring.core.chain.instructions_and_tools import Head
from slipring.engines.llama.slots_and_saved_contexts import SavedContexts, SlotRequest, Slots
from slipring.prompts.rendering import Preface, Rendered, empty
from slipring.protocol.requests import TEXT

PLENTY = 1_000_000
BYTES_PER_TOKEN = 10
fresh_ids = count(100)


def context_of(ids: Iterable[int]) -> Rendered:
    return Rendered("w", Preface(Head(), TEXT), empty(None)).then(ids, None)


HEAD = context_of(range(8))


def chain(tokens: int = 100, before: Rendered = HEAD) -> Rendered:
    """The context of a new chain, with tokens that no other context has after the first."""
    return then(before, tokens)


def then(context: Rendered, tokens: int = 50) -> Rendered:
    return context.then([next(fresh_ids) for _ in range(tokens)], None)


def with_head(context: Rendered, head: Iterable[int]) -> Rendered:
    """A context rendered anew, with another head."""
    return context_of([*head, *context.ids()[HEAD.total :]])


class FakeServer:
    """Slots and files of token ids. A token belongs to the tenant that sends it first; ``prefill`` checks
    that no tenant can reuse a slot with tokens of another."""

    def __init__(self, slots: int) -> None:
        self.slots: list[tuple[int, ...]] = [()] * slots
        self.files: dict[str, tuple[int, ...]] = {}
        self.owners: dict[int, str] = {}
        self.requests: list[str] = []
        self.busy: set[int] = set()
        self.failing: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        """``save`` and ``restore`` wait until theirs is set."""

    def block(self, action: str) -> asyncio.Event:
        self.gates[action] = asyncio.Event()
        return self.gates[action]

    async def _work(self, action: str, slot: int) -> None:
        assert slot not in self.busy, "a slot runs one job at a time"
        self.busy.add(slot)
        self.requests.append(f"{action} {slot}")
        try:
            if action in self.gates:
                await self.gates[action].wait()
            await asyncio.sleep(0)
            if action in self.failing:
                raise Unavailable("connection lost")
        finally:
            self.busy.discard(slot)

    async def save_slot(self, slot: int, name: str) -> int:
        self.files.pop(name, None)
        await self._work("save", slot)
        self.files[name] = self.slots[slot]
        return BYTES_PER_TOKEN * len(self.slots[slot])

    async def restore_slot(self, slot: int, name: str) -> None:
        await self._work("restore", slot)
        if name not in self.files:
            raise Unavailable("no such file")
        self.slots[slot] = self.files[name]

    def prefill(self, slot: int, tenant: str, prompt: Rendered, cache: bool) -> int:
        """Fill a slot as a completion does, with ``cache`` as its ``cache_prompt``; returns how many tokens
        were cached."""
        ids = tuple(prompt.ids())
        for id in ids:
            if id >= 100:
                assert self.owners.setdefault(id, tenant) == tenant
        before = self.slots[slot]
        cached = 0
        if cache:
            others = {self.owners.get(id, tenant) for id in before} - {tenant}
            assert not others, f"{tenant} may reuse a slot that holds tokens of {others}"
            while cached < min(len(ids), len(before)) and ids[cached] == before[cached]:
                cached += 1
        self.slots[slot] = ids
        return cached


class FakeLlama:
    """Runs jobs as the llama engine does: the real ``Slots`` and ``SavedContexts`` with a fake server."""

    def __init__(self, slots: int = 2, limit: int = PLENTY, directory: Path | None = None) -> None:
        self.server = FakeServer(slots)
        self.saved_contexts = SavedContexts(self.server, limit, directory)
        self.slots = Slots(range(slots), self.saved_contexts)

    @asynccontextmanager
    async def job(
        self,
        prompt: Rendered,
        parent: Rendered | None = None,
        *,
        fork: bool = False,
        tenant: str = "t",
        failure: str = "",
    ) -> AsyncIterator[tuple[int, int]]:
        """Run a job; yields the number of its slot and how many tokens were cached.

        ``failure="refused"``: the server refuses the job. ``"lost"``: it fills the slot, but the connection
        is lost before the first chunk.
        """
        request = SlotRequest(tenant, prompt, parent, fork)
        async with self.slots.acquire(request) as slot:
            assert slot.number not in self.server.busy, "a slot runs one job at a time"
            self.server.busy.add(slot.number)
            try:
                cache = slot.tenant == tenant
                slot.mark_uncertain(tenant, request.certain_context(slot))
                if failure == "refused":
                    raise Unavailable("refused")
                cached = self.server.prefill(slot.number, tenant, prompt, cache)
                if failure == "lost":
                    raise Unavailable("connection lost")
                slot.tenant = tenant
                yield slot.number, cached
            finally:
                self.server.busy.discard(slot.number)
            slot.record(prompt, tenant)

    async def run(self, prompt: Rendered, parent: Rendered | None = None, **kind: Any) -> tuple[int, int]:
        async with self.job(prompt, parent, **kind) as found:
            return found

    def start(
        self, prompt: Rendered, parent: Rendered | None = None, **kind: Any
    ) -> "asyncio.Task[tuple[int, int]]":
        return asyncio.create_task(self.run(prompt, parent, **kind))

    @property
    def used(self) -> int:
        assert self.saved_contexts._used_bytes == sum(
            saved.size_bytes for saved in self.saved_contexts._saved
        )
        return self.saved_contexts._used_bytes

    @property
    def free(self) -> list[int]:
        return sorted(slot.number for slot in self.slots._free)


async def settle() -> None:
    """Let all tasks run until they wait for something."""
    for _ in range(20):
        await asyncio.sleep(0)
