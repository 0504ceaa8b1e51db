"""The screen of ``slipring top``: a view as lines for a terminal of any size, until ``q`` is pressed.

Below a header come the tables: workers, engines, slots, connections and running requests, ended turns, parked
sessions. Rows and columns for which there is no room are left out.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from msgspec import UNSET, UnsetType
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from slipring.commands.top.figures import count, duration, rate, share, size, visible
from slipring.commands.top.state import (
    ConnectionView,
    EngineView,
    ParkedView,
    ProcessView,
    Rates,
    State,
    TurnView,
    View,
    ended_at,
    phase_started_at,
)
from slipring.observation.live_messages import Engine, Greeting, Memory, Message, Slot, Turn
from slipring.protocol.turn_report import TurnReport

_INTERVAL_S = 0.25
_MOST_BYTES = 1024
"""Of keys that are read at once."""
_MOST_HEADER_LINES = 5
_SEPARATOR = " · "
_GAP = 2
"""Between two columns."""
_STAGE_AFTER = {
    "render": "engine queue",
    "engine_queue": "prefill",
    "prefill": "generate",
    "held": "generate",
}
"""The stage that a running turn is in, by the latest one that has ended."""
_PHASES = {
    "waiting": "queued",
    "listing": "lists tools",
    "calling": "hosted tools",
    "paused": "waits for tool",
}
"""Words for the phases that are not named for what the server does."""
_PHASE_STYLES = {"queued": "yellow", "engine queue": "yellow", "waits for tool": "cyan"}
_STATUS_STYLES = {"failed": "red", "refused": "red", "incomplete": "yellow", "cancelled": "yellow"}
_NOTHING = Text()
_API_NAMES = {"responses": "", "chat_completions": "chat", "messages": "messages"}


# --- The columns of a table ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a row, with the column that it is in."""

    title: str
    rank: int
    """Of the column: the highest is left out first."""
    text: Text
    is_right: bool = False
    least: int = 0
    """Cells of the terminal to which the column may be shortened before another one is left out. 0: it is not
    shortened."""


Row = Sequence[Cell]
"""All rows of a table have the same columns; the last ones may be missing."""


def right(title: str, rank: int, text: str, style: str = "") -> Cell:
    """A cell of a column of figures."""
    return Cell(title, rank, Text(text, style=style), is_right=True)


def table(rows: Sequence[Row], width: int) -> list[Text]:
    """The heading and the rows as lines. Columns without any text in a row are left out."""
    columns = max(rows, key=len)
    texts = [[cell.text for cell in row] + [Text()] * (len(columns) - len(row)) for row in rows]
    wanted = {
        place: max(len(column.title), *(row[place].cell_len for row in texts))
        for place, column in enumerate(columns)
        if any(row[place].plain for row in texts)
    }
    chosen = _chosen(columns, wanted, width)
    heading = [Text(column.title, style="bold dim") for column in columns]
    return [_line(row, columns, chosen, width) for row in (heading, *texts)]


def _chosen(columns: Row, wanted: dict[int, int], width: int) -> dict[int, int]:
    """The places of the columns that fit, in order, with their widths."""

    def least(place: int) -> int:
        return min(wanted[place], columns[place].least or wanted[place])

    places = list(wanted)
    while len(places) > 1 and sum(map(least, places)) + _GAP * (len(places) - 1) > width:
        places.remove(max(places, key=lambda place: columns[place].rank))
    room = width - sum(map(least, places)) - _GAP * (len(places) - 1)
    widths = {}
    for place in sorted(places, key=lambda place: columns[place].rank):
        more = max(min(wanted[place] - least(place), room), 0)
        widths[place] = least(place) + more
        room -= more
    return {place: widths[place] for place in places}


def _line(row: Sequence[Text], columns: Row, chosen: dict[int, int], width: int) -> Text:
    line = Text()
    for place, cells in chosen.items():
        if line.plain:
            line.append(" " * _GAP)
        cell = shortened(row[place], cells)
        space = " " * (cells - cell.cell_len)
        line.append_text(Text(space) + cell if columns[place].is_right else cell + Text(space))
    line.rstrip()
    return shortened(line, width)


def shortened(text: Text, cells: int) -> Text:
    """A copy of a text that takes at most this many cells."""
    copy = text.copy()
    copy.truncate(max(cells, 0), overflow="ellipsis")
    return copy


# --- What a connection or a turn is doing ----------------------------------------------------------


def connection_phase(view: ConnectionView, now: float) -> tuple[Text, Text]:
    """What a connection is doing, and for how long; of several running turns, the oldest."""
    running = view.connection.running
    if running:
        phase, time = turn_phase(min(running, key=lambda turn: turn.started_at), now)
        return (phase.append(f" +{len(running) - 1}") if len(running) > 1 else phase), time
    if view.idle_s is not None:
        return Text("waits for client", style="dim"), Text(duration(view.idle_s), style="dim")
    return Text("no turn yet", style="dim"), Text(duration(now - view.connection.opened_at), style="dim")


def turn_phase(turn: Turn, now: float) -> tuple[Text, Text]:
    """What a turn is doing, and for how long."""
    phase = turn.report.status
    word = _PHASES.get(phase, phase)
    if phase == "running" and turn.report.stages:
        word = _STAGE_AFTER.get(turn.report.stages[-1].name, phase)
    style = _PHASE_STYLES.get(word, "green")
    return Text(visible(word), style=style), Text(duration(now - phase_started_at(turn)), style=style)


# --- The tables ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Section:
    """A table of which as many rows are shown as there is room for."""

    items: Sequence[Any]
    row: Callable[[Any], Row]
    rank: int
    """The lowest gets room first."""
    weight: int = 1
    """How fast it grows where there is more room."""
    most_of_a_snapshot: int = 10**6
    """Rows that are printed where there is no end to the room."""

    def lines(self, width: int, room: int) -> list[Text]:
        """The heading and the rows in this many lines; the last one says how many rows are left out."""
        left_out = len(self.items) - (room - 1)
        has_note = left_out > 0 and room > 2
        shown = self.items[: room - 2 if has_note else room - 1]
        found = table([self.row(item) for item in shown], width)
        if has_note:
            found.append(shortened(Text(f"… {count(left_out + 1)} more", style="dim"), width))
        return found


def sections(view: View) -> list[Section]:
    """The tables that have rows, from top to bottom."""
    has_workers = view.workers > 1 or len(view.processes) > 1
    slots = [(each, slot) for each in view.engines for slot in each.engine.slots]

    def name(process: int, text: str) -> Text:
        """A name, with its worker if there are several."""
        return Text(f"w{process} {text}" if has_workers else text)

    clients = _clients_by_response(view, name) if slots else {}
    found = [
        Section(view.processes if has_workers else [], _worker_row, rank=5),
        Section(view.engines, lambda each: _engine_row(each, name), rank=1),
        Section(slots, lambda each: _slot_row(*each, name=name, clients=clients), rank=3),
        Section(_activities(view), lambda each: _activity_row(each, view.now, name), 0, 3),
        Section(view.turns, lambda each: _turn_row(each, view.now, name), 2, 2, 20),
        Section(view.parked, lambda each: _parked_row(each, name), 4, 1, 20),
    ]
    return [section for section in found if section.items]


_Name = Callable[[int, str], Text]


# --- Workers, engines, slots ------------------------------------------------------------------------


def _worker_row(view: ProcessView) -> Row:
    return (
        Cell("worker", 0, Text(f"w{view.process}")),
        Cell("pid", 5, Text(str(view.pid))),
        right("CPU", 1, "" if view.cpu_percent is None else f"{count(view.cpu_percent)} %"),
        right("memory", 2, size(view.resident_bytes)),
        right("loop lag", 3, duration(view.loop_lag_ms / 1000)),
        right("connections", 6, count(view.sockets)),
        right("in flight", 4, count(view.in_flight)),
        right("waiting", 7, count(view.waiting)),
        Cell("state", 8, Text("draining" if view.is_draining else "", style="yellow")),
    )


def _engine_row(view: EngineView, name: _Name) -> Row:
    engine = view.engine
    trouble = engine.trouble
    health = Text("ok", style="green") if trouble is None else Text(visible(trouble), style="bold red")
    breaker = "" if engine.breaker == "none" else visible(engine.breaker)
    return (
        Cell("engine", 0, name(view.process, visible(engine.name)), least=8),
        Cell("health", 1, health, least=8),
        right("running", 2, count(engine.running), "green" if engine.running else ""),
        right("queue", 3, count(engine.waiting), "yellow" if engine.waiting else ""),
        Cell("breaker", 4, Text(breaker, style="bold red" if engine.breaker == "open" else "")),
        right("slots busy", 5, _busy_slots(engine)),
        Cell("saved contexts", 6, Text(_saved_contexts(engine))),
        Cell("models", 7, Text(", ".join(map(visible, engine.models)), style="dim"), least=8),
    )


def _busy_slots(engine: Engine) -> str:
    busy = sum(slot.state == "busy" for slot in engine.slots)
    return f"{busy} of {len(engine.slots)}" if engine.slots else ""


def _saved_contexts(engine: Engine) -> str:
    memory = engine.saved_memory
    if memory is None:
        return ""
    return f"{len(engine.saved)}, {size(memory.used_bytes)} of {size(memory.limit_bytes)}"


def _clients_by_response(view: View, name: _Name) -> dict[str | UnsetType | None, Text]:
    """The connections of the responses that run, or that were the last of their connections."""
    return {
        turn.report.response_id: name(each.process, f"#{each.connection.number}")
        for each in view.connections
        for turn in (each.last_turn, *each.connection.running)
        if turn is not None
    }


def _slot_row(
    view: EngineView, slot: Slot, *, name: _Name, clients: dict[str | UnsetType | None, Text]
) -> Row:
    return (
        Cell("slot", 0, name(view.process, f"{visible(view.engine.name)} {slot.number}")),
        Cell("state", 1, Text(visible(slot.state), style="green" if slot.state == "busy" else "dim")),
        right("tokens", 3, count(slot.tokens) if slot.tokens else ""),
        Cell("tenant", 4, Text(visible(slot.tenant or "")), least=6),
        Cell("client", 5, clients.get(slot.response_id, _NOTHING)),
        Cell("latest response in it", 2, Text(visible(slot.response_id or "")), least=12),
    )


# --- Connections and running requests ---------------------------------------------------------------


def _activities(view: View) -> list[ConnectionView | TurnView]:
    """Busy connections, then running HTTP requests, then idle connections."""
    busy = [each for each in view.connections if each.connection.running]
    return [*busy, *view.http, *view.connections[len(busy) :]]


def _activity_row(view: ConnectionView | TurnView, now: float, name: _Name) -> Row:
    if isinstance(view, TurnView):
        turn = view.turn
        client = name(view.process, _asked(turn))
        return _begun(client, turn_phase(turn, now), turn.tenant, "", turn.lane)
    connection, last = view.connection, view.last_turn
    shown = min(connection.running, key=lambda turn: turn.started_at, default=last)
    client, cache = name(view.process, f"#{connection.number}"), connection.cache
    lane = None if shown is None else shown.lane
    return (
        *_begun(client, connection_phase(view, now), connection.tenant, count(connection.lanes), lane),
        right("turns", 7, count(connection.turns_ended)),
        Cell("last turn", 3, _NOTHING if last is None else _outcome(last), least=8),
        *_tokens(last, 4),
        right("cache", 10, size(cache.used_bytes)),
        right("of bound", 13, share(cache.used_bytes, cache.limit_bytes)),
        right("unsent", 11, size(connection.unsent_bytes) if connection.unsent_bytes else "", "yellow"),
        right("open", 12, duration(now - connection.opened_at), "dim"),
    )


def _begun(client: Text, phase: tuple[Text, Text], tenant: str, lanes: str, lane: str | None) -> Row:
    """What connections and requests have in common."""
    return (
        Cell("client", 0, client),
        Cell("now", 1, phase[0], least=16),
        Cell("for", 1, phase[1], is_right=True),
        Cell("tenant", 2, Text(visible(tenant)), least=6),
        right("lanes", 8, lanes),
        Cell("lane", 9, Text(visible(lane or "")), least=6),
    )


def _outcome(turn: Turn) -> Text:
    """How long an ended turn took, and how it ended if not as usual."""
    report = turn.report
    took = duration(report.total_ms / 1000)
    if report.status == "completed":
        return Text(took)
    reason = report.error_code if report.error_code is not UNSET else report.status
    return Text(f"{took} {visible(reason)}", style=_STATUS_STYLES.get(report.status, ""))


def _tokens(turn: Turn | None, rank: int) -> Row:
    """Input tokens that the engine had to process, those that it had, and output tokens."""
    tokens = UNSET if turn is None else turn.report.tokens
    found = ("",) * 3
    if tokens is not UNSET:
        found = count(tokens.input - tokens.cached), count(tokens.cached), count(tokens.output)
    return [right(title, rank + place, found[place]) for place, title in enumerate(("new", "cached", "out"))]


# --- Ended turns ------------------------------------------------------------------------------------


def _turn_row(view: TurnView, now: float, name: _Name) -> Row:
    turn, report = view.turn, view.turn.report
    client = f"#{turn.connection}" if turn.connection else _asked(turn)
    saved = report.history_bytes
    return (
        right("ended", 0, f"{duration(now - ended_at(turn))} ago", "dim"),
        Cell("client", 2, name(view.process, client)),
        Cell("tenant", 6, Text(visible(turn.tenant)), least=6),
        Cell("lane", 13, Text(visible(turn.lane or "")), least=6),
        Cell("model", 8, Text("" if report.model is UNSET else visible(report.model)), least=8),
        Cell("took", 1, _outcome(turn), least=8),
        Cell("slowest stage", 7, Text(_slowest_stage(turn))),
        *_tokens(turn, 3),
        right("received", 11, size(report.request_bytes)),
        right("saved", 9, "" if saved is UNSET or not saved else size(saved), "green"),
        right("calls", 10, "" if report.hosted_calls is UNSET else count(report.hosted_calls)),
        Cell(
            "marks", 12, Text("" if report.marks is UNSET else ", ".join(report.marks), style="cyan"), least=8
        ),
        Cell("rendered in full because", 14, Text(_why_in_full(report), style="yellow"), least=10),
    )


def _why_in_full(report: TurnReport) -> str:
    """Why a context was rendered in full, or a history was not recognised."""
    if report.fallback is not UNSET:
        return visible(report.fallback)
    return "" if report.departed is UNSET else f"other {visible(report.departed.place)}"


def _asked(turn: Turn) -> str:
    """How an HTTP request came: its transport, and its API if that is not Responses."""
    name = _API_NAMES.get(turn.api, visible(turn.api))
    return f"{visible(turn.transport)} {name}".rstrip()


def _slowest_stage(turn: Turn) -> str:
    stages = turn.report.stages
    if not stages:
        return ""
    slowest = max(stages, key=lambda stage: stage.duration_ms)
    return f"{slowest.name.replace('_', ' ')} {share(slowest.duration_ms, turn.report.total_ms)}"


# --- Parked sessions --------------------------------------------------------------------------------


def _parked_row(view: ParkedView, name: _Name) -> Row:
    parked = view.parked
    return (
        Cell("parked session of", 0, name(view.process, visible(parked.tenant)), least=6),
        right("time left", 1, duration(parked.seconds_left)),
        right("responses", 3, count(parked.responses)),
        right("size", 2, size(parked.size_bytes)),
    )


# --- The layout ------------------------------------------------------------------------------------


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


# --- The header ------------------------------------------------------------------------------------


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


# --- Drawing it, and its key -----------------------------------------------------------------------


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
