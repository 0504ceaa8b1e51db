"""The tables of the screen: workers, engines, slots, connections, ended turns, parked sessions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType
from rich.text import Text

from slipring.commands.top.columns import Cell, Row, right, shortened, table
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

_API_NAMES = {"responses": "", "chat_completions": "chat", "messages": "messages"}


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
