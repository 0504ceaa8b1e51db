"""Shows on standard error that an engine is starting: loading a model may take minutes.

A terminal shows a line that counts the seconds and is erased at the end; other outputs get one plain line.
Nothing is shown if the start takes less than a second.
"""

import asyncio
from typing import TextIO

_DELAY_S = 1.0
_TICK_S = 1.0
_CLEAR = "\r\x1b[K"


class Loading:
    """Shows the progress until ``end`` is called or the context is left."""

    def __init__(self, stream: TextIO, engine: str, model: str, *, delay_s: float = _DELAY_S) -> None:
        self._stream = stream
        self._engine = engine
        self._model = model
        self._delay_s = delay_s
        self._is_shown = False

    def __enter__(self) -> "Loading":
        self._task = asyncio.create_task(self._show())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop, and erase the line on a terminal."""
        self._task.cancel()
        if self._is_shown:
            self._write(_CLEAR)
            self._is_shown = False

    async def _show(self) -> None:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        await asyncio.sleep(self._delay_s)
        if not self._stream.isatty():
            self._write(f"slipring: starting the engine {self._engine} …\n")
            return
        self._is_shown = True
        while True:
            # The final return makes a log message overwrite this line instead of continuing it.
            self._write(f"{_CLEAR}loading {self._model} … {clock() - started_at:.0f} s\r")
            await asyncio.sleep(_TICK_S)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
