"""Owners of a llama-server: they divide its slots and the space for saved contexts among workers.

Without workers there is one user, in the same process. No slot belongs to two users: each records only the
tenants of its own jobs, so a slot that two users filled could reveal one tenant's prompts to another. File
names are prefixed per user.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from slipring.base.errors import StartupError
from slipring.engines.engine_hosts import Share
from slipring.engines.llama.api import describe
from slipring.engines.llama.child_process import ChildProcess, ChildSettings
from slipring.engines.llama.options import OWN_TEXT, LlamaOptions
from slipring.engines.llama.served_model import projector_of
from slipring.engines.llama.slots_and_saved_contexts import kv_directory
from slipring.engines.remote.http_client import HttpClient


class EmbeddedOwner:
    """Owns a child process that runs llama.cpp, and divides its slots among users."""

    def __init__(self, options: LlamaOptions, path: str, context: int, users: int = 1) -> None:
        """``path`` is the model's file, ``context`` the tokens that a slot can hold. There is at least one
        slot per user, even if the options ask for fewer. Raises ``StartupError`` if the drafts of one user
        would depend on what another has sent."""
        if users > 1 and options.serves_one_tenant:
            raise StartupError(
                f"--engine llama: option 'spec={options.spec}' does not work with several workers, because"
                f" no worker knows the tenants of the others (spec={OWN_TEXT} does)"
            )
        self._users = users
        self._slots = max(options.slots, users)
        limit_bytes = options.saved_mib * 2**20
        self._share_bytes = limit_bytes // users
        self._directory = kv_directory(limit_bytes) if limit_bytes else None
        self.process = ChildProcess(
            ChildSettings(
                path=path,
                context=context,
                slots=self._slots,
                threads=options.thread_count,
                gpu_layers=options.gpu_layers,
                chunk=options.chunk,
                spec=options.spec,
                directory=str(self._directory or ""),
                projector=projector_of(options, path),
                media_marker=f"<__media_{secrets.token_hex(16)}__>",
            )
        )
        self.key = self.process.key

    @property
    def address(self) -> str | None:
        return None if self.process.trouble else self.process.url

    async def start(self, on_move: Callable[[], None]) -> None:
        await self.process.start(on_loss=on_move, on_return=on_move)

    async def close(self) -> None:
        await self.process.close()

    def share(self, number: int) -> Share:
        mark = f"{number}-"
        self._remove_files(mark)
        return Share(
            slots=tuple(range(number, self._slots, self._users)),
            saved_bytes=self._share_bytes,
            directory=str(self._directory or ""),
            mark=mark,
        )

    def suspect(self, url: str) -> None:
        # All users report a hang at about the same time. A late report names the address of a child that
        # was already replaced.
        if url == self.address:
            self.process.suspect()

    def _remove_files(self, mark: str) -> None:
        """Remove the files of a user that died. No other process knows their names."""
        if self._directory is not None:
            for left in Path(self._directory).glob(f"slipring-{mark}*"):
                left.unlink(missing_ok=True)


class ExternalOwner:
    """Divides the slots of a llama-server that slipring did not start among workers."""

    def __init__(self, options: LlamaOptions, users: int) -> None:
        self.key = options.key()
        self.address: str | None = options.model
        self._users = users
        self._share_bytes = options.saved_mib * 2**20 // users
        self._url = options.model
        self._slots = 0

    async def start(self, on_move: Callable[[], None]) -> None:
        """Ask how many slots there are. Raises ``StartupError`` if they are fewer than workers."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        async with HttpClient(self._url, headers) as client:
            self._slots = int((await describe(client)).get("total_slots", 0))
        if self._slots < self._users:
            raise StartupError(
                f"--engine llama: {self._url} has {self._slots} slots, and {self._users} workers need one"
                f" each (start it with --parallel {self._users} or more)"
            )

    async def close(self) -> None:
        return

    def share(self, number: int) -> Share:
        slots = tuple(range(number, self._slots, self._users))
        return Share(slots, self._share_bytes, mark=f"{number}-")

    def suspect(self, url: str) -> None:
        """Ignored: slipring does not restart it."""
        return
