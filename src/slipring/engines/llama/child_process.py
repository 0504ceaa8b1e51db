"""Keeps the child process that runs llama.cpp running.

A child that dies is restarted after a pause that doubles with each failed start. Meanwhile ``url`` raises
``Unavailable``.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, structs

from slipring.base.errors import StartupError
from slipring.engines.engine_hosts import Host
from slipring.engines.llama.packaged_model import file_to_load

log = logging.getLogger("slipring")

_ERROR = re.compile(r"\bE llg error: ")
_OF_SLOT = re.compile(r"\bslot\s+(\w+): id\s+(\d+) \|")


class RejectedGrammars:
    """Reads the log of llama.cpp, line by line, and notes the slots whose grammar was rejected when their job
    began.

    llama.cpp does not refuse a grammar that its llguidance rejects. It writes an error into its log and
    samples without a grammar. Every grammar was compiled in a sandbox before, so this happens only if the
    llguidance of the sandbox and that of llama.cpp differ.
    """

    def __init__(self) -> None:
        self._slots: set[int] = set()
        self._is_pending = False

    def read(self, line: str) -> None:
        if _ERROR.search(line):
            self._is_pending = True
            log.warning(
                "llama.cpp does not enforce the grammar of an answer: its log of level debug says why"
            )
        elif self._is_pending and (of_slot := _OF_SLOT.search(line)) is not None:
            # The thread that rejects a grammar reports the beginning of that job next. If it reports another
            # thing, a running job has lost its grammar, and the log does not say which one.
            self._is_pending = False
            if of_slot[1].startswith("launch"):
                self._slots.add(int(of_slot[2]))

    def take(self, slot: int) -> bool:
        """Whether the grammar of the job that began last in a slot was rejected. True once for each job."""
        if slot not in self._slots:
            return False
        self._slots.discard(slot)
        return True


_LOAD_TIMEOUT_S = 600.0
_SCRIPT = str(Path(__file__).with_name("child_program.py"))
"""Run as a file: as a module, it would first import the package of the engine, of which it uses nothing."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LOG_BYTES = 65536
"""Bytes of the child's log that are read at once, and kept of a line that has not ended."""


class ChildSettings(Struct, frozen=True):
    """The settings that the child reads from its standard input."""

    path: str
    context: int
    slots: int
    threads: int
    gpu_layers: int = 0
    chunk: int = 256
    spec: str = ""
    """How tokens are drafted; empty: they are not."""
    directory: str = ""
    """Where slots are saved; empty: nowhere. It is removed when the child ends."""
    projector: str = ""
    """The file that lets the model see; empty: it does not."""
    media_marker: str = ""
    """What stands for a picture in the text of a prompt: nothing that a client can guess."""
    alias: str = ""
    """What the child calls its model, if not by its path."""


def _ignore() -> None:
    return


class ChildProcess(Host):
    """Starts, watches and restarts the child."""

    why_down = "the embedded engine is starting again"

    def __init__(self, settings: ChildSettings) -> None:
        # The child requires the key in every request: other users of the machine can reach its port.
        super().__init__(key=secrets.token_hex(16))
        self._directory = Path(settings.directory) if settings.directory else None
        self._settings = settings
        self._child: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._on_loss = self._on_return = _ignore
        self._rejected_grammars = RejectedGrammars()
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def suspect(self) -> None:
        """Report that the child has not answered for too long. It is killed, and then restarted."""
        if self._child is not None and self._child.returncode is None:
            log.error("the embedded engine hangs; killing it")
            self._child.kill()

    def rejects_grammar(self, slot: int) -> bool:
        return self._rejected_grammars.take(slot)

    async def start(
        self, on_loss: Callable[[], None] = _ignore, on_return: Callable[[], None] = _ignore
    ) -> None:
        """Start the child. ``on_loss`` is called when it has died, ``on_return`` when it runs again. Raises
        ``StartupError`` if it cannot load its model."""
        self._on_loss, self._on_return = on_loss, on_return
        if self._directory is not None:
            self._directory.mkdir(mode=0o700, exist_ok=True)
        await self._spawn()
        self._watch = asyncio.create_task(self._keep_running())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _spawn(self) -> None:
        """Start the child and wait until it has loaded its model. Raises ``StartupError``."""
        # At every start: the copy that an earlier child has loaded may have been removed since.
        file = await asyncio.to_thread(file_to_load, self._settings.path)
        settings = structs.replace(self._settings, path=file, alias=Path(self._settings.path).name)
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", _SCRIPT),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # Its threads wait for each other many times per token. By default they spin for long: if
                # another process needs a core (this one does), generation almost stops.
                env={"GOMP_SPINCOUNT": "1000", **os.environ},
                start_new_session=True,  # Ctrl-C goes to the server alone, which then ends the child
            )
        except OSError as error:  # perhaps there is no memory for it, or there are too many processes
            raise StartupError(f"the embedded engine did not start: {error.strerror}") from None
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(json.dumps({**structs.asdict(settings), "key": self.key}).encode() + b"\n")
        last_line = asyncio.create_task(self._drain(child.stderr))
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                line = await child.stdout.readline()
        except TimeoutError:
            line = b""
        try:
            self._url = json.loads(line)["url"]
        except (ValueError, TypeError, LookupError):  # it has exited, or printed no address
            await self._kill()
            raise StartupError(f"the embedded engine did not start: {await last_line}") from None

    async def _keep_running(self) -> None:
        """Wait until the child dies, then restart it, forever."""
        pause_s = _FIRST_PAUSE_S
        while True:
            assert self._child is not None
            code = await self._child.wait()
            self._url = None
            self._on_loss()
            log.error("the embedded engine ended with %s; starting it again", code)
            await asyncio.sleep(pause_s)
            try:
                await self._spawn()
            except StartupError as error:
                log.error("%s", error)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            self.restarts += 1
            self._on_return()
            pause_s = _FIRST_PAUSE_S

    async def _drain(self, stream: asyncio.StreamReader) -> str:
        """Log and read the lines of a stream until it ends, so that its writer never blocks; returns the last
        one that is not empty. Of a line that is too long a part is left out."""
        last, rest = "it printed no message", b""
        while chunk := await stream.read(_LOG_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:_LOG_BYTES]
            for line in lines:
                last = self._read_log(line) or last
        return self._read_log(rest) or last

    def _read_log(self, line: bytes) -> str:
        """Log a line of the child's log, and look for what matters in it; returns its text."""
        text = line.decode("utf-8", "replace").strip()
        if text:
            log.debug("llama: %s", text)
            self._rejected_grammars.read(text)
        return text

    async def _kill(self) -> None:
        self._url = None
        if self._child is not None and self._child.returncode is None:
            self._child.kill()  # it has nothing to save
            await self._child.wait()
