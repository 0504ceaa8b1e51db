"""The tables of the screen: workers, engines, slots, connections, ended turns, parked sessions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType
from rich.text import Text

from slipring.commands.top.columns import Column, Row, shortened, table
from slipring.commands.top.figures import count, duration, share, size, visible
from slipring.commands.top.phase_words import connection_phase, turn_phase
from slipring.commands.top.state import (
    ConnectionView,
    EngineView,
    ParkedView,
    ProcessView,
    TurnView,
    View,
    ended_at,
)
from slipring.observation.live_messages import Engine, Slot, Turn
from slipring.protocol.turn_report import TurnReport

_STATUS_STYLES = {"failed": "red", "refused": "red", "incomplete": "yellow", "cancelled": "yellow"}
_NOTHING = Text()


@dataclass(frozen=True, slots=True)
class Section:
    """A table of which as many rows are shown as there is room for."""

    columns: Sequence[Column]
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
        found = table(self.columns, [self.row(item) for item in shown], width)
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
        Section(_WORKERS, view.processes if has_workers else [], _worker_row, rank=5),
        Section(_ENGINES, view.engines, lambda each: _engine_row(each, name), rank=1),
        Section(_SLOTS, slots, lambda each: _slot_row(*each, name=name, clients=clients), rank=3),
        Section(_ACTIVITIES, _activities(view), lambda each: _activity_row(each, view.now, name), 0, 3),
        Section(_TURNS, view.turns, lambda each: _turn_row(each, view.now, name), 2, 2, 20),
        Section(_PARKED, view.parked, lambda each: _parked_row(each, name), 4, 1, 20),
    ]
    return [section for section in found if section.items]


_Name = Callable[[int, str], Text]


# --- Workers, engines, slots ------------------------------------------------------------------------

_WORKERS = (
    Column("worker", 0),
    Column("pid", 5),
    Column("CPU", 1, is_right=True),
    Column("memory", 2, is_right=True),
    Column("loop lag", 3, is_right=True),
    Column("connections", 6, is_right=True),
    Column("in flight", 4, is_right=True),
    Column("waiting", 7, is_right=True),
    Column("state", 8),
)


def _worker_row(view: ProcessView) -> Row:
    cpu = "" if view.cpu_percent is None else f"{count(view.cpu_percent)} %"
    return (
        Text(f"w{view.process}"),
        Text(str(view.pid)),
        Text(cpu),
        Text(size(view.resident_bytes)),
        Text(duration(view.loop_lag_ms / 1000)),
        Text(count(view.sockets)),
        Text(count(view.in_flight)),
        Text(count(view.waiting)),
        Text("draining" if view.is_draining else "", style="yellow"),
    )


_ENGINES = (
    Column("engine", 0, least=8),
    Column("health", 1, least=8),
    Column("running", 2, is_right=True),
    Column("queue", 3, is_right=True),
    Column("breaker", 4),
    Column("slots busy", 5, is_right=True),
    Column("saved contexts", 6),
    Column("models", 7, least=8),
)


def _engine_row(view: EngineView, name: _Name) -> Row:
    engine = view.engine
    trouble = engine.trouble
    return (
        name(view.process, visible(engine.name)),
        Text("ok", style="green") if trouble is None else Text(visible(trouble), style="bold red"),
        Text(count(engine.running), style="green" if engine.running else ""),
        Text(count(engine.waiting), style="yellow" if engine.waiting else ""),
        Text("" if engine.breaker == "none" else visible(engine.breaker), style=_breaker_style(engine)),
        Text(_busy_slots(engine)),
        Text(_saved_contexts(engine)),
        Text(", ".join(map(visible, engine.models)), style="dim"),
    )


def _breaker_style(engine: Engine) -> str:
    return "bold red" if engine.breaker == "open" else ""


def _busy_slots(engine: Engine) -> str:
    busy = sum(slot.state == "busy" for slot in engine.slots)
    return f"{busy} of {len(engine.slots)}" if engine.slots else ""


def _saved_contexts(engine: Engine) -> str:
    memory = engine.saved_memory
    if memory is None:
        return ""
    return f"{len(engine.saved)}, {size(memory.used_bytes)} of {size(memory.limit_bytes)}"


_SLOTS = (
    Column("slot", 0),
    Column("state", 1),
    Column("tokens", 3, is_right=True),
    Column("tenant", 4, least=6),
    Column("client", 5),
    Column("latest response in it", 2, least=12),
)


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
        name(view.process, f"{visible(view.engine.name)} {slot.number}"),
        Text(visible(slot.state), style="green" if slot.state == "busy" else "dim"),
        Text(count(slot.tokens) if slot.tokens else ""),
        Text(visible(slot.tenant or "")),
        clients.get(slot.response_id, _NOTHING),
        Text(visible(slot.response_id or "")),
    )


# --- Connections and running requests ---------------------------------------------------------------

_ACTIVITIES = (
    Column("client", 0),
    Column("now", 1, least=16),
    Column("for", 1, is_right=True),
    Column("tenant", 2, least=6),
    Column("lanes", 8, is_right=True),
    Column("lane", 9, least=6),
    Column("turns", 7, is_right=True),
    Column("last turn", 3, least=8),
    Column("new", 4, is_right=True),
    Column("cached", 5, is_right=True),
    Column("out", 6, is_right=True),
    Column("cache", 10, is_right=True),
    Column("of bound", 13, is_right=True),
    Column("unsent", 11, is_right=True),
    Column("open", 12, is_right=True),
)


def _activities(view: View) -> list[ConnectionView | TurnView]:
    """Busy connections, then running HTTP requests, then idle connections."""
    busy = [each for each in view.connections if each.connection.running]
    return [*busy, *view.http, *view.connections[len(busy) :]]


def _activity_row(view: ConnectionView | TurnView, now: float, name: _Name) -> Row:
    if isinstance(view, TurnView):
        turn = view.turn
        cells = (
            name(view.process, _asked(turn)),
            *turn_phase(turn, now),
            Text(visible(turn.tenant)),
            _NOTHING,
            Text(visible(turn.lane or "")),
        )
        return (*cells, *[_NOTHING] * (len(_ACTIVITIES) - len(cells)))
    connection, last = view.connection, view.last_turn
    shown = min(connection.running, key=lambda turn: turn.started_at, default=last)
    return (
        name(view.process, f"#{connection.number}"),
        *connection_phase(view, now),
        Text(visible(connection.tenant)),
        Text(count(connection.lanes)),
        _NOTHING if shown is None else Text(visible(shown.lane or "")),
        Text(count(connection.turns_ended)),
        _NOTHING if last is None else _outcome(last),
        *_token_cells(last),
        Text(size(connection.cache.used_bytes)),
        Text(share(connection.cache.used_bytes, connection.cache.limit_bytes)),
        Text(size(connection.unsent_bytes) if connection.unsent_bytes else "", style="yellow"),
        Text(duration(now - connection.opened_at), style="dim"),
    )


def _outcome(turn: Turn) -> Text:
    """How long an ended turn took, and how it ended if not as usual."""
    report = turn.report
    took = duration(report.total_ms / 1000)
    if report.status == "completed":
        return Text(took)
    reason = report.error_code if report.error_code is not UNSET else report.status
    return Text(f"{took} {visible(reason)}", style=_STATUS_STYLES.get(report.status, ""))


def _token_cells(turn: Turn | None) -> tuple[Text, Text, Text]:
    """Input tokens that the engine had to process, those that it had, and output tokens."""
    tokens = UNSET if turn is None else turn.report.tokens
    if tokens is UNSET:
        return _NOTHING, _NOTHING, _NOTHING
    return Text(count(tokens.input - tokens.cached)), Text(count(tokens.cached)), Text(count(tokens.output))


# --- Ended turns ------------------------------------------------------------------------------------

_API_NAMES = {"responses": "", "chat_completions": "chat", "messages": "messages"}
_TURNS = (
    Column("ended", 0, is_right=True),
    Column("client", 2),
    Column("tenant", 6, least=6),
    Column("lane", 13, least=6),
    Column("model", 8, least=8),
    Column("took", 1, least=8),
    Column("slowest stage", 7),
    Column("new", 3, is_right=True),
    Column("cached", 4, is_right=True),
    Column("out", 5, is_right=True),
    Column("received", 11, is_right=True),
    Column("saved", 9, is_right=True),
    Column("calls", 10, is_right=True),
    Column("marks", 12, least=8),
    Column("rendered in full because", 14, least=10),
)


def _turn_row(view: TurnView, now: float, name: _Name) -> Row:
    turn, report = view.turn, view.turn.report
    client = f"#{turn.connection}" if turn.connection else _asked(turn)
    saved = report.history_bytes
    return (
        Text(f"{duration(now - ended_at(turn))} ago", style="dim"),
        name(view.process, client),
        Text(visible(turn.tenant)),
        Text(visible(turn.lane or "")),
        Text("" if report.model is UNSET else visible(report.model)),
        _outcome(turn),
        Text(_slowest_stage(turn)),
        *_token_cells(turn),
        Text(size(report.request_bytes)),
        Text("" if saved is UNSET or not saved else size(saved), style="green"),
        Text("" if report.hosted_calls is UNSET else count(report.hosted_calls)),
        Text("" if report.marks is UNSET else ", ".join(report.marks), style="cyan"),
        Text(_why_in_full(report), style="yellow"),
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

_PARKED = (
    Column("parked session of", 0, least=6),
    Column("time left", 1, is_right=True),
    Column("responses", 3, is_right=True),
    Column("size", 2, is_right=True),
)


def _parked_row(view: ParkedView, name: _Name) -> Row:
    parked = view.parked
    return (
        name(view.process, visible(parked.tenant)),
        Text(duration(parked.seconds_left)),
        Text(count(parked.responses)),
        Text(size(parked.size_bytes)),
    )
