"""Runs the commands of a guide or a recipe in the order of the page.

A page is followed in an empty directory. ``sh`` blocks run in a shell, ``python`` blocks in this process. A
``text`` block right after either is what it must print (``…`` matches anything). A ``sh`` block that begins
with ``slipring serve`` keeps running until the page ends. Ports of the page are replaced by free ones.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.free_port import free_port
from tests.snippets import run_snippet

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}|(?<=--port )\d{4,5}")
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    follows: str
    """What stands between the previous block and this one."""


def blocks(page: str) -> list[Block]:
    """The blocks of a page, named by its path below ``docs``."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found, end = [], 0
    for match in _BLOCK.finditer(text):
        found.append(Block(match.group(1), match.group(2), text[end : match.start()]))
        end = match.end()
    return found


def ports_of(page: str) -> dict[str, str]:
    """A free port for every port that the page names."""
    named = _PORT.findall((DOCS / page).read_text(encoding="utf-8"))
    return {port: str(free_port()) for port in sorted(set(named))}


class Guide:
    """A page that is being followed.

    ``replace`` puts the addresses of this run into the page's text; ``programs`` is a directory of commands
    that the page uses; ``environ`` are variables for them.
    """

    def __init__(
        self,
        page: str,
        directory: Path,
        replace: Callable[[str], str] = str,
        programs: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.page = page
        self.ports = ports_of(page)
        self._directory = directory
        self._replace = replace
        self._environ = dict(environ or {})
        self._programs = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), programs)))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Guide":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop the servers that the page has started."""
        await self._stack.aclose()

    def local(self, text: str) -> str:
        """Text of the page with the ports and addresses of this run."""
        return _PORT.sub(lambda match: self.ports[match.group()], self._replace(text))

    async def follow(self, stand_ins: dict[str, Callable[[str], None]] | None = None) -> str | None:
        """Run every block; returns what the last command printed. ``stand_ins``: for commands that cannot be
        run here, by their first word, what is done or checked instead."""
        printed: str | None = None
        last: str | None = None
        for block in blocks(self.page):
            if block.language == "text" and printed is not None and not block.follows.strip():
                _require_match(block.text, printed)
            printed = None
            command = self.local(block.text)
            program = _program(command)
            if block.language == "sh" and stand_ins and program in stand_ins:
                stand_ins[program](command)
            elif block.language == "sh" and command.startswith("slipring serve"):
                await self._serve(command)
            elif block.language == "sh":
                printed = last = await self._run("sh", "-ec", command)
            elif block.language == "python":
                printed = last = await run_snippet(command, self._directory)
        return last

    async def _start(self, *command: str) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLIPRING_")}
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self._directory,
            # Its own home: a guide may write settings of programs there.
            env={
                **environment,
                **self._environ,
                "HOME": str(self._directory),
                "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def _run(self, *command: str) -> str:
        process = await self._start(*command)
        out, err = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
        assert process.returncode == 0, f"{command[-1]}\n{out.decode()}{err.decode()}"
        return out.decode()

    async def _serve(self, command: str) -> None:
        process = await self._start("sh", "-ec", f"exec {command}")
        self._stack.push_async_callback(_stop, process)
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), _TIMEOUT_S)
        if b"serves" not in first:
            assert process.stderr is not None
            raise AssertionError(f"{command}\n{(await process.stderr.read()).decode()}")


def _program(command: str) -> str:
    """The first word that is not an assignment; empty if all are."""
    return next((word for word in command.split() if "=" not in word), "")


def _require_match(expected: str, printed: str) -> None:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"expected:\n{expected}\nprinted:\n{printed}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
