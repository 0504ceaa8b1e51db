"""What a connection or a turn is doing, in words."""

from rich.text import Text

from slipring.commands.top.figures import duration, visible
from slipring.commands.top.state import ConnectionView, phase_started_at
from slipring.observation.live_messages import Turn

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
