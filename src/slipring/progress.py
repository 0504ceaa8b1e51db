"""What an operator sees while an engine starts: a model may load for minutes.

On a terminal a line that counts the seconds and goes away, elsewhere one plain line; nothing at all where it
takes no time. Standard output is left to the announcement.
"""

import asyncio
from typing import TextIO

_PATIENCE_S = 1.0
_TICK_S = 1.0
_CLEAR = "\r\x1b[K"


class Loading:
    """The display, from the beginning of the block to ``end``, at the latest to the end of the block."""

    def __init__(self, stream: TextIO, engine: str, model: str, *, patience_s: float = _PATIENCE_S) -> None:
        self._stream = stream
        self._engine = engine
        self._model = model
        self._patience_s = patience_s
        self._is_shown = False

    def __enter__(self) -> "Loading":
        self._task = asyncio.create_task(self._show())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Show no more, and leave no trace on a terminal."""
        self._task.cancel()
        if self._is_shown:
            self._write(_CLEAR)
            self._is_shown = False

    async def _show(self) -> None:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        await asyncio.sleep(self._patience_s)
        if not self._stream.isatty():
            self._write(f"slipring: starting the engine {self._engine} …\n")
            return
        self._is_shown = True
        while True:
            self._write(f"{_CLEAR}loading {self._model} … {clock() - started_at:.0f} s")
            await asyncio.sleep(_TICK_S)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
