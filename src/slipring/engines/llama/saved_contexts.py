"""Saved contexts: the KV of chains that have no slot, in files that the engine writes and reads.

Restoring a context takes microseconds per token, prefilling it milliseconds. The total size of the files is
bounded; the least recently used are evicted first.
"""

import logging
import os
import secrets
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from slipring.base.errors import ApiError
from slipring.engines.llama.api import Unsupported
from slipring.observation import live_messages
from slipring.prompts.rendering import Rendered

_PREFIX = "slipring-kv-"


log = logging.getLogger("slipring")

MIN_TOKENS = 32
"""Shorter contexts are prefilled again instead of saved: a file costs a request."""


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
    return place / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def _remove_stale_directories(place: Path) -> None:
    """Remove the directories of processes that were killed together with their children."""
    for left in place.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
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
