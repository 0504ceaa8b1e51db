"""A small file system that becomes full: turns fail meanwhile, and go on as soon as there is space again.

The file system is a tmpfs in a mount namespace of this process and those that it starts from then on, so
nothing of it is seen, or left behind, on the machine. It needs Linux, and root or user namespaces.
"""

import ctypes
import os
import subprocess
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.crash.servers import until
from tests.crash.sites import Skipped, SqliteSite

if TYPE_CHECKING:
    from tests.crash.storm import Round

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
"""Flags of ``unshare``."""
_SIZE = "size=24m"
_REFUSALS = 5
"""Turns that have to fail before there is space again."""


class DiskSite(SqliteSite):
    """One server or two on a disk that becomes full."""

    name = "disk"
    fault_share = 0.9

    async def open(self, stack: AsyncExitStack) -> None:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        try:
            _enter_namespace()
            _mount("--make-rprivate", "/")
            _mount("-t", "tmpfs", "-o", _SIZE, "tmpfs", root)
        except (OSError, AttributeError, subprocess.CalledProcessError) as error:
            raise Skipped(f"no file system can be mounted here: {error}") from None
        stack.callback(lambda: subprocess.run(["umount", "-l", root], check=True))
        self.directory = Path(root)
        self._ballast = self.directory / "ballast"

    async def break_something(self, storm_round: "Round") -> str:
        crowd = storm_round.crowd
        crowd.may_refuse = True
        before = crowd.refusals
        self._fill()
        try:
            await until(
                lambda: crowd.refusals >= before + _REFUSALS or not crowd.urls,
                "turns are answered although the disk is full",
            )
        finally:
            self._ballast.unlink()
        return "disk full"

    def _fill(self) -> None:
        """Write until nothing more fits, down to the last byte."""
        with self._ballast.open("ab", buffering=0) as file:
            for chunk in (bytes(65536), bytes(4096), b"0"):
                with suppress(OSError):
                    while file.write(chunk) == len(chunk):
                        pass


def _enter_namespace() -> None:
    """Give this thread, and the processes that it starts, mounts of their own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) == 0:
        return
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS | _NEW_USERS):
        raise OSError(ctypes.get_errno(), "unshare failed")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
