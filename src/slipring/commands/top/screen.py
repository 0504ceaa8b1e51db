"""The screen of ``slipring top``: a view as lines for a terminal of any size, until ``q`` is pressed."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from slipring.commands.top.columns import shortened
from slipring.commands.top.figures import count, duration, rate, share, size, visible
from slipring.commands.top.sections import Section, sections
from slipring.commands.top.state import Rates, State, View
from slipring.observation.live_messages import Greeting, Memory, Message

_MOST_HEADER_LINES = 5
_SEPARATOR = " · "


class Screen:
    """A renderable that always shows the latest view, in the size of the terminal."""

    def __init__(self, address: str) -> None:
        self.view: View | None = None
        self.trouble: str | None = None
        """Why nothing new is shown."""
        self._address = address

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        yield from lines(self.view, self._address, options.max_width, height, trouble=self.trouble)


def lines(
    view: View | None, address: str, width: int, height: int | None, *, trouble: str | None = None
) -> list[Text]:
    """A view as lines: at most ``height`` of them, or a whole snapshot without."""
    found: list[Text] = []
    if trouble is not None:
        found.append(shortened(Text(visible(trouble), style="bold yellow"), width))
    if view is None:
        found.append(shortened(Text(f"connecting to {visible(address)} …"), width))
        return found[:height]
    most = _MOST_HEADER_LINES if height is None else max(1, min(_MOST_HEADER_LINES, height // 3))
    found += _flowed(_header(view, address), width, most)
    if not (view.connections or view.http or view.turns):
        hint = f"no client is connected: clients use {visible(view.api_url)}"
        found += [Text(), shortened(Text(hint, style="cyan"), width)]
    shown = sections(view)
    left = None if height is None else max(height - len(found), 0)
    rooms = _rooms(shown, left)
    has_gaps = left is None or sum(rooms) + len(rooms) <= left
    for section, room in zip(shown, rooms, strict=True):
        if room:
            found += [*([Text()] if has_gaps else []), *section.lines(width, room)]
    return found[:height]


def _rooms(shown: list[Section], height: int | None) -> list[int]:
    """The lines that each section gets: first two for each by rank, then more by weight."""
    if height is None:
        return [1 + min(len(section.items), section.most_of_a_snapshot) for section in shown]
    rooms = [0] * len(shown)
    left = height
    for place in sorted(range(len(shown)), key=lambda place: shown[place].rank):
        if left >= 2:
            rooms[place] = 2
            left -= 2
    is_growing = True
    while left and is_growing:
        is_growing = False
        for place, section in enumerate(shown):
            wanted = min(section.weight, 1 + len(section.items) - rooms[place], left)
            if rooms[place] and wanted > 0:
                rooms[place] += wanted
                left -= wanted
                is_growing = True
    return rooms


# --- The header -------------------------------------------------------------------------------------


def _header(view: View, address: str) -> list[Text]:
    """The parts of the header, the most important first."""
    return [*_identity(view, address), *_traffic(view), *_resources(view), *_troubles(view)]


def _identity(view: View, address: str) -> list[Text]:
    parts = [
        Text(f"slipring {visible(view.version)}", style="bold"),
        Text(visible(address), style="dim"),
        Text(f"up {duration(view.uptime_s)}"),
        Text(f"{count(view.workers)} worker{'s' if view.workers != 1 else ''}"),
    ]
    missing = view.workers - len(view.processes)
    if missing > 0:
        parts.append(Text(f"{count(missing)} not reporting", style="bold red"))
    if any(process.is_draining for process in view.processes):
        parts.append(Text("draining", style="bold yellow"))
    return parts


def _traffic(view: View) -> list[Text]:
    rates, totals = view.rates, view.totals
    tokens_in, tokens_out = totals.tokens.get("input", 0), totals.tokens.get("output", 0)
    return [
        Text(f"turns {count(sum(totals.turns.values()))}{_in_brackets(rates, 'turns_per_s')}"),
        Text(f"in flight {count(view.in_flight)}", style="green" if view.in_flight else ""),
        Text(f"waiting {count(view.waiting)}", style="yellow" if view.waiting else ""),
        Text(f"connections {count(view.sockets)}"),
        Text(f"tokens in {count(tokens_in)}{_in_brackets(rates, 'input_tokens_per_s')}"),
        Text(f"cached {share(totals.tokens.get('cached', 0), tokens_in)}"),
        Text(f"out {count(tokens_out)}{_in_brackets(rates, 'output_tokens_per_s')}"),
        Text(f"received {size(totals.request_bytes)}"),
        Text(f"saved {size(totals.history_bytes)}", style="green"),
    ]


def _resources(view: View) -> list[Text]:
    parts = [
        Text(f"loop lag {duration(view.loop_lag_ms / 1000)}", style=_lag_style(view.loop_lag_ms)),
        Text(f"memory {size(view.resident_bytes)}"),
    ]
    if view.rates is not None:
        parts.append(Text(f"CPU {count(view.rates.cpu_percent)} %"))
    if (states := view.memory.get("states")) is not None:
        parts.append(Text(f"states {_against_bound(states)}"))
    if view.parked_sessions:
        parked = view.memory.get("parked")
        held = "" if parked is None else f", {_against_bound(parked)}"
        parts.append(Text(f"parked {count(view.parked_sessions)}{held}"))
    return parts


def _troubles(view: View) -> list[Text]:
    """What went wrong, and the memory that is rarely used."""
    parts = []
    failed = sum(view.totals.turns.get(status, 0) for status in ("failed", "refused"))
    if failed:
        parts.append(Text(f"failed or refused {count(failed)}", style="red"))
    if view.totals.fallbacks:
        parts.append(Text(f"full renders {count(sum(view.totals.fallbacks.values()))}", style="yellow"))
    for name, memory in sorted(view.memory.items()):
        if name not in ("states", "parked") and memory.used_bytes:
            parts.append(Text(f"{visible(name)} {_against_bound(memory)}", style="dim"))
    return parts


def _against_bound(memory: Memory) -> str:
    return f"{size(memory.used_bytes)} of {size(memory.limit_bytes)}"


def _in_brackets(rates: Rates | None, name: str) -> str:
    return "" if rates is None else f" ({rate(getattr(rates, name))})"


def _lag_style(milliseconds: float) -> str:
    return "red" if milliseconds >= 1000 else "yellow" if milliseconds >= 100 else ""


def _flowed(parts: list[Text], width: int, most: int) -> list[Text]:
    """The parts on lines, each part whole; those that no longer fit are left out."""
    found: list[Text] = []
    for part in parts:
        if found and found[-1].cell_len + len(_SEPARATOR) + part.cell_len <= width:
            found[-1].append(_SEPARATOR, style="dim").append_text(part)
        elif len(found) < most:
            found.append(Text().append_text(shortened(part, width)))  # without a style of its own
        else:
            break
    return found


_INTERVAL_S = 0.25


class Drawing:
    """Shows the state in the terminal's second screen while the context is open."""

    def __init__(self, address: str, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False)
        self._screen = Screen(address)
        self._live = Live(
            self._screen,
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._state: State | None = None
        """What has changed since the last drawing."""
        self._drawn: object = None
        """Size and trouble that are drawn."""

    def __enter__(self) -> "Drawing":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def changed(self, state: State, message: Message) -> None:
        self._screen.trouble = None
        if not isinstance(message, Greeting):  # what was drawn stays until there is something new
            self._state = state

    def interrupted(self, trouble: str) -> None:
        self._screen.trouble = trouble

    async def draw_repeatedly(self) -> None:
        """Draw what has changed, the terminal's size included."""
        while True:
            self.draw()
            await asyncio.sleep(_INTERVAL_S)

    def draw(self) -> None:
        """Draw if something has changed."""
        now = (self._console.size, self._screen.trouble)
        if self._state is None and now == self._drawn:
            return
        if self._state is not None:
            self._screen.view = self._state.view()
        self._state, self._drawn = None, now
        self._live.refresh()


_MOST_BYTES = 1024


@contextlib.contextmanager
def quit_key(source: TextIO, pressed: Callable[[], None]) -> Iterator[None]:
    """Call ``pressed`` for each ``q``. Leaving the context restores the terminal's modes.

    Does nothing if ``source`` is not a terminal.
    """
    if not source.isatty():
        yield
        return
    import termios  # not available on every platform
    import tty

    descriptor = source.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        keys = os.read(descriptor, _MOST_BYTES)
        if not keys:
            loop.remove_reader(descriptor)
        if b"q" in keys:
            pressed()

    modes = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
