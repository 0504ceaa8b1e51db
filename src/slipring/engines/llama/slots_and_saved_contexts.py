"""Which context each slot of the engine holds, which slot a job gets, and what is saved to files.

A slot holds the KV of one context. A continuation runs in the slot that holds its parent. Where it cannot (a
fork must not overwrite its parent's slot; another chain may have taken the slot), the KV is copied from the
slot or saved context that shares most tokens with it, so that only the rest is prefilled. Jobs that find no
free slot wait, first come, first served.

The KV of chains that have no slot is in files that the engine writes and reads: restoring a context takes
microseconds per token, prefilling it milliseconds. The total size of the files is bounded; the least recently
used are evicted first.
"""

import asyncio
import logging
import os
import secrets
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import ApiError
from slipring.engines.llama.api import Unsupported
from slipring.observation import live_messages
from slipring.prompts import rendering_codec
from slipring.prompts.rendering import Rendered

log = logging.getLogger("slipring")
MIN_TOKENS = 32
"""Shorter contexts are prefilled again instead of saved: a file costs a request."""
_SEAM_TOKENS = 8
"""Tolerance around the last answer: the marks of a message can depend on the message that follows it."""
_DIRECTORY_PREFIX = "slipring-kv-"


class SlotFiles(Protocol):
    """An engine that can write a slot's KV to a file and read it back."""

    async def save_slot(self, slot: int, name: str) -> int:
        """Write a slot's KV to the file ``name``; returns its size in bytes."""

    async def restore_slot(self, slot: int, name: str) -> None:
        """Replace a slot's KV by the content of the file ``name``."""


class SavedContext(Struct, frozen=True, eq=False):
    """A context whose KV is in a file of the engine."""

    name: str
    """The name of the file."""
    context: Rendered
    tenant: str
    size_bytes: int
    response_id: str | None = None
    """The latest response of the context, for operators."""


class SavedContexts:
    """An LRU cache of contexts in files, bounded in bytes.

    The most recently saved context is kept even if it alone exceeds the bound. Failures of the engine are
    logged and never raised: a context that cannot be saved or restored has to be prefilled again.
    """

    def __init__(
        self, files: SlotFiles, limit_bytes: int, directory: Path | None = None, mark: str = ""
    ) -> None:
        """``limit_bytes=0`` disables saving. ``directory`` is where the engine writes its files, if they may
        be deleted here; else their names are reused. ``mark`` prefixes the names."""
        self._files = files
        self._limit_bytes = limit_bytes
        self._directory = directory
        self._saved: OrderedDict[SavedContext, None] = OrderedDict()  # least recently used first
        self._used_bytes = 0
        self._pins: Counter[SavedContext] = Counter()
        self._free_names: list[str] = []
        self._prefix = mark + secrets.token_hex(6)  # other processes may save to the same directory
        self._names_made = 0

    @property
    def is_enabled(self) -> bool:
        """Whether contexts are saved. False once the engine has reported that it cannot."""
        return self._limit_bytes > 0

    def find_best(
        self, tenant: str, reusable_tokens: Callable[[Rendered], int]
    ) -> tuple[SavedContext | None, int]:
        """The tenant's saved context with the most reusable tokens, and how many. None if no saved context
        has ``MIN_TOKENS`` of them."""
        best: tuple[SavedContext | None, int] = (None, MIN_TOKENS - 1)
        for saved in self._saved:
            if saved.tenant == tenant and (tokens := reusable_tokens(saved.context)) > best[1]:
                best = (saved, tokens)
        return best

    def status(self) -> tuple[list[live_messages.SavedContext], live_messages.Memory | None]:
        """What operators see: the saved contexts, and their memory; None if saving is disabled."""
        contexts = [
            live_messages.SavedContext(
                tenant=saved.tenant,
                tokens=saved.context.total,
                size_bytes=saved.size_bytes,
                response_id=saved.response_id,
            )
            for saved in self._saved
        ]
        return contexts, live_messages.Memory(
            self._used_bytes, self._limit_bytes
        ) if self.is_enabled else None

    async def save(
        self, slot: int, context: Rendered | None, tenant: str | None, response_id: str | None = None
    ) -> None:
        """Save the context in a slot, unless it is saved already, too short, or not known for sure."""
        if context is None or tenant is None or not self.is_enabled or context.total < MIN_TOKENS:
            return
        for saved in self._saved:
            if saved.context.body is context.body:
                self._saved.move_to_end(saved)
                return
        name = self._free_names.pop() if self._free_names else self._new_name()
        try:
            size_bytes = await self._files.save_slot(slot, name)
        except Unsupported:
            self._limit_bytes = 0
            log.info("the engine cannot save contexts: those without a slot will be prefilled again")
            return
        except ApiError as error:
            self._delete_file(name)
            log.warning("a context could not be saved and will be prefilled again: %s", error.message)
            return
        self._saved[SavedContext(name, context, tenant, size_bytes, response_id)] = None
        self._used_bytes += size_bytes
        while self._used_bytes > self._limit_bytes and len(self._saved) > 1:
            self._evict(next(iter(self._saved)))

    async def restore(self, saved: SavedContext, slot: int) -> bool:
        """Restore a context into a slot; returns whether that succeeded. A context that cannot be restored is
        evicted."""
        try:
            await self._files.restore_slot(slot, saved.name)
        except ApiError as error:
            log.warning("a saved context could not be read and will be prefilled again: %s", error.message)
            if saved in self._saved:
                self._evict(saved)
            return False
        return True

    @contextmanager
    def pinned(self, saved: SavedContext) -> Iterator[None]:
        """Keep a context's file within the block, even if the context is evicted meanwhile."""
        if saved in self._saved:
            self._saved.move_to_end(saved)
        self._pins[saved] += 1
        try:
            yield
        finally:
            self._pins[saved] -= 1
            if not self._pins[saved]:
                del self._pins[saved]
                if saved not in self._saved:
                    self._delete_file(saved.name)

    def clear(self) -> None:
        """Evict every context."""
        for saved in list(self._saved):
            self._evict(saved)

    def _evict(self, saved: SavedContext) -> None:
        del self._saved[saved]
        self._used_bytes -= saved.size_bytes
        if saved not in self._pins:
            self._delete_file(saved.name)

    def _delete_file(self, name: str) -> None:
        """Delete a file if that is allowed, and free its name for reuse."""
        self._free_names.append(name)
        if self._directory is not None:
            (self._directory / name).unlink(missing_ok=True)

    def _new_name(self) -> str:
        self._names_made += 1
        return f"slipring-{self._prefix}-{self._names_made}.kv"


def kv_directory(limit_bytes: int) -> Path:
    """The path of a new directory for this process, not yet created: in memory if ``limit_bytes`` are free
    there, else on disk. Removes directories of processes that no longer run."""
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())
    fits = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > limit_bytes
    place = memory if fits else disk
    _remove_stale_directories(place)
    return place / f"{_DIRECTORY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def _remove_stale_directories(place: Path) -> None:
    """Remove the directories of processes that were killed together with their children."""
    for left in place.glob(f"{_DIRECTORY_PREFIX}*"):
        owner = left.name.removeprefix(_DIRECTORY_PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process of another user
    return True


class SlotRequest(Struct, frozen=True):
    """A job's request for a slot, preferably one that holds the beginning of its prompt."""

    tenant: str
    prompt: Rendered
    parent: Rendered | None
    """The context that the job continues. Without one, its prompt is compared token by token."""
    fork: bool
    """Whether the job must leave its parent's context intact."""

    def reusable_tokens(self, context: Rendered) -> int:
        """How many tokens of the prompt need no prefill in a slot that holds ``context``."""
        if self.parent is not None:
            return shared_tokens(self.prompt, context)
        return common_tokens(self.prompt, context)

    def may_overwrite(self, context: Rendered) -> bool:
        """Whether the job may run in the slot of ``context`` without saving it: it continues that context."""
        if self.fork:
            return False
        if self.parent is not None:
            # The job's own chain. It is not needed again, even if a new head leaves nothing to reuse.
            return shared_tokens(self.parent, context) == context.total
        # A client that sends its whole history again, perhaps with the last answer in other tokens, does not
        # need the end of the old context. One that shares only the beginning is another conversation.
        common = common_tokens(self.prompt, context)
        held = context.id_count
        without_answer = held - len(context.body.step.ids) - _SEAM_TOKENS
        return common >= without_answer and 2 * common > held

    def certain_context(self, slot: "Slot") -> Rendered | None:
        """The context that ``slot`` holds at least, however the job ends; None if none is certain. A
        cancelled job leaves the tokens that it reused and an unknown number of new ones."""
        if self.parent is None or slot.context is None or slot.tenant != self.tenant:
            return None
        kept = Rendered(self.prompt.writer, self.prompt.preface, self.parent.body)
        return kept if self.reusable_tokens(slot.context) >= kept.total else None


class Slot:
    """One slot of the engine, and what is known about its content."""

    __slots__ = ("context", "is_copied", "number", "response_id", "tenant")

    def __init__(self, number: int) -> None:
        self.number = number
        self.context: Rendered | None = None
        """The context whose KV the slot holds; None if unknown. The engine compares tokens itself, so a wrong
        value costs time and nothing else."""
        self.tenant: str | None = None
        """The tenant that owns every token in the slot; None if uncertain. The engine reuses any common
        prefix, so prompt caching is only allowed for this tenant."""
        self.is_copied = False
        """Whether its context is being saved for another slot."""
        self.response_id: str | None = None
        """The latest response that ran in it or whose context was restored into it, for operators."""

    def record(self, context: Rendered | None, tenant: str | None) -> None:
        """Set what the slot holds and who owns it."""
        self.context, self.tenant = context, tenant

    def mark_uncertain(self, tenant: str, certain: Rendered | None = None) -> None:
        """Record that the engine is about to fill the slot for ``tenant``. Until it confirms that it has
        begun, the old content may still be there. ``certain`` is there in either case."""
        self.record(certain, tenant if self.tenant == tenant else None)


class _Waiter:
    """A request and the future of its slot."""

    __slots__ = ("request", "slot")

    def __init__(self, request: SlotRequest) -> None:
        self.request = request
        self.slot: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()


class Slots:
    """Assigns the slots that this process may use to jobs, and prepares their content."""

    def __init__(self, numbers: Iterable[int], saved_contexts: SavedContexts) -> None:
        self._all = {number: Slot(number) for number in numbers}
        self._free = list(self._all.values())  # least recently used first
        self._waiting: list[_Waiter] = []
        self._preparations: set[asyncio.Task[None]] = set()
        self._saved_contexts = saved_contexts

    def reset(self) -> None:
        """Forget all contexts: the engine has lost them. What running jobs record from now on is ignored."""
        self._all = {number: Slot(number) for number in self._all}
        self._free = [self._all[slot.number] for slot in self._free]
        self._saved_contexts.clear()

    def status(self) -> list[live_messages.Slot]:
        """What operators see of each slot."""
        free = set(map(id, self._free))
        return [
            live_messages.Slot(
                number=slot.number,
                state="idle" if id(slot) in free else "busy",
                tokens=slot.context.total if slot.context is not None else 0,
                tenant=slot.tenant,
                response_id=slot.response_id,
            )
            for slot in self._all.values()
        ]

    @asynccontextmanager
    async def acquire(self, request: SlotRequest) -> AsyncIterator[Slot]:
        """Wait for a slot and hold it within the block. It has as much of the request's prompt as any free
        slot or saved context."""
        slot = await self._wait_for_slot(request)
        try:
            yield slot
        finally:
            self._release(slot)

    async def _wait_for_slot(self, request: SlotRequest) -> Slot:
        waiter = _Waiter(request)
        self._waiting.append(waiter)
        self._assign_free_slots()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not waiter.slot.cancelled() and waiter.slot.exception() is None:
                self._release(waiter.slot.result())  # assigned just before the cancellation
            raise

    def _release(self, slot: Slot) -> None:
        self._free.append(self._all[slot.number])
        self._assign_free_slots()

    def _assign_free_slots(self) -> None:
        """Assign the free slots to waiting requests, in order."""
        for waiter in list(self._waiting):
            if not self._free:
                return
            if waiter.slot.done() or self._should_await_copy(waiter.request):
                continue
            self._waiting.remove(waiter)
            slot = self._choose(waiter.request)
            self._free.remove(slot)
            self._assign(slot, waiter)

    def _should_await_copy(self, request: SlotRequest) -> bool:
        """Whether a slot that is being copied would be better than any free one. A copy takes milliseconds,
        less than the prefill that it saves."""
        most = max((_reusable(slot, request) for slot in self._all.values() if slot.is_copied), default=0)
        return most >= MIN_TOKENS and most > max(_reusable(slot, request) for slot in self._free)

    def _choose(self, request: SlotRequest) -> Slot:
        """The free slot for a request: one that it may overwrite, else an empty one, else the least recently
        used; if possible not the one that its context will be copied from."""
        in_place = [slot for slot in self._free if _may_overwrite(slot, request)]
        best = max(in_place or self._free, key=lambda slot: _reusable(slot, request))
        if in_place:
            return best
        is_source = _reusable(best, request) >= MIN_TOKENS
        others = [slot for slot in self._free if slot is not best or not is_source] or [best]
        empty = (slot for slot in others if slot.context is None)
        return next(empty, others[0])

    def _assign(self, slot: Slot, waiter: _Waiter) -> None:
        """Give a slot to a request, at once or after a task has prepared its content."""
        if _may_overwrite(slot, waiter.request):
            waiter.slot.set_result(slot)
            return
        source = self._copy_source(slot, waiter.request)
        if source is not None:
            self._free.remove(source)
            source.is_copied = True
        task = asyncio.get_running_loop().create_task(self._prepare_and_assign(slot, source, waiter))
        self._preparations.add(task)
        task.add_done_callback(self._preparations.discard)

    def _copy_source(self, slot: Slot, request: SlotRequest) -> Slot | None:
        """The free slot with the most reusable tokens; None if ``slot`` or a saved context has as many."""
        if not self._saved_contexts.is_enabled or not self._free:
            return None
        source = max(self._free, key=lambda other: _reusable(other, request))
        _, saved = self._saved_contexts.find_best(request.tenant, request.reusable_tokens)
        return source if _reusable(source, request) > max(_reusable(slot, request), saved) else None

    async def _prepare_and_assign(self, slot: Slot, source: Slot | None, waiter: _Waiter) -> None:
        """Prepare a slot and give it to a request. If the request is cancelled, the preparation is still
        completed: the engine cannot be interrupted, and no other job may use the slot before it is done."""
        try:
            if source is not None:
                await self._save_source(source)
            await self._prepare(slot, waiter.request)
        except Exception as error:
            if not waiter.slot.done():
                waiter.slot.set_exception(error)
        finally:
            if waiter.slot.done():
                self._release(slot)
            else:
                waiter.slot.set_result(slot)

    async def _save_source(self, source: Slot) -> None:
        """Save the context of the slot to copy from, then release it."""
        try:
            await self._saved_contexts.save(source.number, source.context, source.tenant, source.response_id)
        finally:
            source.is_copied = False
            self._release(source)

    async def _prepare(self, slot: Slot, request: SlotRequest) -> None:
        """Save the context that a request overwrites; restore the best saved one if it has more to reuse."""
        saved, tokens = self._saved_contexts.find_best(request.tenant, request.reusable_tokens)
        if saved is None or tokens <= _reusable(slot, request):
            await self._saved_contexts.save(slot.number, slot.context, slot.tenant, slot.response_id)
            return
        with self._saved_contexts.pinned(saved):
            await self._saved_contexts.save(slot.number, slot.context, slot.tenant, slot.response_id)
            await self._restore(saved, slot)

    async def _restore(self, saved: SavedContext, slot: Slot) -> None:
        slot.mark_uncertain(saved.tenant)
        if await self._saved_contexts.restore(saved, slot.number):
            slot.record(saved.context, saved.tenant)
            slot.response_id = saved.response_id


def _reusable(slot: Slot, request: SlotRequest) -> int:
    """How many tokens of a request's prompt the slot holds; 0 if it may hold another tenant's."""
    if slot.context is None or slot.tenant != request.tenant:
        return 0
    return request.reusable_tokens(slot.context)


def _may_overwrite(slot: Slot, request: SlotRequest) -> bool:
    return slot.context is not None and slot.tenant == request.tenant and request.may_overwrite(slot.context)


def shared_tokens(one: Rendered, other: Rendered) -> int:
    """How many tokens two contexts of one renderer share because both continue the same context."""
    if one.body is other.body:
        return one.total
    ancestors = {id(body) for body in other.body.lineage()}
    return next((body.total for body in one.body.lineage() if id(body) in ancestors), 0)


def common_tokens(one: Rendered, other: Rendered) -> int:
    """The length of the longest common prefix of two contexts, by comparing tokens."""
    left, right = (b"".join(step.ids.tobytes() for step in each.body.steps()) for each in (one, other))
    return rendering_codec.common_tokens(left, right)
