"""The driver for servers that are processes: one JSON message per line on standard input and output."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from slipring.mcp.failures import ConnectionLost, Malformed, McpFailure, TooLarge, Unreachable
from slipring.mcp.protocol.session import McpSession, Send
from slipring.mcp.result_redaction import Redaction
from slipring.mcp.servers import StdioServer
from slipring.mcp.transports.connection import Connection

_log = logging.getLogger(__name__)

_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""All that a process inherits: no key of slipring, and none of its engines or stores."""
_STDERR_TAIL_BYTES = 4096
_MAX_UNSENT_BYTES = 16 * 2**20


class StdioConnection(Connection):
    """A process, its pipes and its process group. Nothing of the group outlives the connection."""

    def __init__(
        self,
        server: StdioServer,
        session: McpSession,
        on_tools_changed: Callable[[], None],
        on_unheard: Callable[[], None],
    ) -> None:
        super().__init__(session, server.limits, on_tools_changed, on_unheard)
        self._server = server
        self._process: asyncio.subprocess.Process | None = None
        self._is_closing = False
        self.stderr_tail = bytearray()
        """The last of what the process wrote to standard error. May contain secrets."""

    async def _open(self) -> None:
        environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._server.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**environ, **self._server.env},
                cwd=self._server.cwd,
                limit=self.limits.max_message_bytes,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "invalid command"
            raise Unreachable(f"the MCP server's process cannot be started: {reason}") from None
        self._spawn(self._read(self._process))
        self._spawn(self._drain_stderr(self._process))
        self._spawn(self._time_probe())

    async def _opened(self) -> None:
        # On a pipe, announcements come between answers: the subscription costs no connection.
        if not self.agreement.is_modern:
            self._heard()
        elif self.agreement.announces_tool_changes:
            self._spawn(self._listen())

    async def _close(self) -> None:
        process = self._process
        if process is None or self._is_closing:
            return
        self._is_closing = True
        assert process.stdin is not None
        process.stdin.close()
        try:
            await self._exited(process)
        finally:
            # Also after a cancellation, and if the process has ended by itself: its children end too.
            _signal_group(process, signal.SIGKILL)
        await process.wait()

    async def _exited(self, process: asyncio.subprocess.Process) -> None:
        """Give the process time to exit by itself, then after SIGTERM."""
        for ask in (None, signal.SIGTERM):
            if ask is not None:
                _signal_group(process, ask)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.close_grace_s):
                    await process.wait()
                    return

    def _send(self, send: Send) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            if send.request_id is not None:
                self._run(self.session.failed(send.request_id, ConnectionLost("the MCP server has ended")))
            return
        if process.stdin.transport.get_write_buffer_size() + len(send.data) > _MAX_UNSENT_BYTES:
            self._give_up(ConnectionLost("the MCP server does not read its input"))
            return
        if send.request_id is not None:
            self.session.sent(send.request_id)
        process.stdin.write(send.data + b"\n")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read messages until the process ends its output."""
        assert process.stdout is not None
        junk = 0
        failure: McpFailure = ConnectionLost("the MCP server's process ended before the answer")
        try:
            while read := await process.stdout.readline():
                line = read.strip()
                if line[:1] in (b"{", b"["):
                    self._take(line, is_whole=read.endswith(b"\n"))
                elif line:
                    # Text that programs print by mistake. It cannot be an answer.
                    junk += 1
                    if junk > self.limits.max_junk_lines:
                        raise Malformed("the MCP server's process writes something other than messages")
        except ValueError:
            failure = TooLarge(
                f"the MCP server sent a message of more than {self.limits.max_message_bytes} bytes"
            )
        except McpFailure as found:
            failure = found
        self._give_up(failure)

    def _take(self, line: bytes, *, is_whole: bool) -> None:
        """Take a message. One that is not whole was cut by the end of the process, unless it lacks only its
        line break."""
        try:
            self._receive(line)
        except Malformed:
            if is_whole:
                raise

    def _give_up(self, failure: McpFailure) -> None:
        """End the session and the process."""
        if not self._is_closing:
            _log.warning(
                "the process of MCP server '%s' is ended: %s%s",
                self._server.name,
                failure,
                self._last_words(),
            )
        self._end(type(failure), failure.message)
        if self._process is not None:
            _signal_group(self._process, signal.SIGKILL)

    def _last_words(self) -> str:
        """The end of the process's standard error, without the values that the configuration gave it."""
        text = self.stderr_tail.decode("utf-8", "replace").strip()
        text = Redaction(self._server.secrets(), 1).text(text)
        return f"; its last output: {text}" if text else ""

    async def _drain_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(2**16):
            self.stderr_tail += piece
            del self.stderr_tail[:-_STDERR_TAIL_BYTES]

    async def _time_probe(self) -> None:
        await asyncio.sleep(self.limits.probe_timeout_s)
        self._run(self.session.probe_timed_out())


def _signal_group(process: asyncio.subprocess.Process, what: signal.Signals) -> None:
    """Signal the process and all of its descendants that stayed in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, what)
