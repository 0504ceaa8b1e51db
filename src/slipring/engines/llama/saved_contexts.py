"""Saved contexts: the KV of chains that have no slot, in files that the engine writes and reads.

To read a context back takes some microseconds per token, to prefill it milliseconds: the files pay as soon as
there is anything in them. They are bounded in bytes; past the bound, those that were used longest ago go.
"""

import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from slipring.engines.llama.api import Unsupported
from slipring.errors import ApiError
from slipring.prompts.rendering import Rendered

log = logging.getLogger("slipring")

MIN_TOKENS = 32
"""Fewer are prefilled again: a file costs a request."""


class SlotFiles(Protocol):
    """The engine's side: it writes a slot to a file and reads it back."""

    async def save_slot(self, slot: int, name: str) -> int:
        """Write; returns the size in bytes."""

    async def restore_slot(self, slot: int, name: str) -> None: ...


class Saved(Struct, frozen=True, eq=False):
    """A context on the shelf."""

    name: str
    held: Rendered
    tenant: str
    size_bytes: int


class SavedContexts:
    """What is saved, and for how long."""

    def __init__(
        self, files: SlotFiles, limit_bytes: int, directory: Path | None = None, mark: str = ""
    ) -> None:
        """``directory``: where the files are, if they are ours to remove; else their names are used again.
        ``mark`` begins their names."""
        self._files = files
        self._limit_bytes = limit_bytes
        self._directory = directory
        self._saved: OrderedDict[Saved, None] = OrderedDict()  # least recently used first
        self._used_bytes = 0
        self._readers: Counter[Saved] = Counter()
        self._spare_names: list[str] = []
        self._prefix = mark + secrets.token_hex(6)  # others may save to the same place
        self._named = 0
        self.restored = 0

    @property
    def is_open(self) -> bool:
        """Whether anything is saved at all."""
        return self._limit_bytes > 0

    def best(self, tenant: str, shared: Callable[[Rendered], int]) -> tuple[Saved | None, int]:
        """The tenant's context that has most of what is wanted, and how much."""
        best: tuple[Saved | None, int] = (None, MIN_TOKENS - 1)
        for saved in self._saved:
            if saved.tenant == tenant and (tokens := shared(saved.held)) > best[1]:
                best = (saved, tokens)
        return best

    async def save(self, slot: int, held: Rendered | None, tenant: str | None) -> Saved | None:
        """Save what a slot holds, unless it lies here already or is not worth it."""
        if held is None or tenant is None or not self.is_open or held.total < MIN_TOKENS:
            return None
        for saved in self._saved:
            if saved.held.body is held.body and saved.held.preface is held.preface:
                self._saved.move_to_end(saved)
                return saved
        name = self._spare_names.pop() if self._spare_names else self._new_name()
        try:
            size_bytes = await self._files.save_slot(slot, name)
        except Unsupported:
            self._limit_bytes = 0
            log.info("the engine saves no contexts: those without a slot will be prefilled again")
            return None
        except ApiError as error:
            self._discard(name)
            log.warning("a context could not be saved and will be prefilled again: %s", error.message)
            return None
        saved = Saved(name, held, tenant, size_bytes)
        self._saved[saved] = None
        self._used_bytes += size_bytes
        while self._used_bytes > self._limit_bytes and len(self._saved) > 1:
            self._drop(next(iter(self._saved)))
        return saved

    async def restore(self, saved: Saved, slot: int) -> bool:
        """Read a context back into a slot; whether that could be done."""
        try:
            await self._files.restore_slot(slot, saved.name)
        except ApiError as error:
            log.warning("a saved context could not be read and will be prefilled again: %s", error.message)
            if saved in self._saved:
                self._drop(saved)
            return False
        self.restored += 1
        return True

    @contextmanager
    def kept(self, saved: Saved) -> Iterator[None]:
        """Keep a file for one who is to read it, even if its context has to make room meanwhile."""
        if saved in self._saved:
            self._saved.move_to_end(saved)
        self._readers[saved] += 1
        try:
            yield
        finally:
            self._readers[saved] -= 1
            if not self._readers[saved]:
                del self._readers[saved]
                if saved not in self._saved:
                    self._discard(saved.name)

    def clear(self) -> None:
        for saved in list(self._saved):
            self._drop(saved)

    def _drop(self, saved: Saved) -> None:
        del self._saved[saved]
        self._used_bytes -= saved.size_bytes
        if saved not in self._readers:
            self._discard(saved.name)

    def _discard(self, name: str) -> None:
        """Let a file go. From now on its name may be given to another one."""
        self._spare_names.append(name)
        if self._directory is not None:
            (self._directory / name).unlink(missing_ok=True)

    def _new_name(self) -> str:
        self._named += 1
        return f"slipring-{self._prefix}-{self._named}.kv"
