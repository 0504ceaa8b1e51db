"""The turn log: one line per turn in the logger ``slipring.turns``, at level info.

Every turn has its line: completed, incomplete, failed, cancelled and refused ones. A line has ids, sizes and
times, the tenant and the id of its stored key, never content and never a key. Lines are ``key=value`` fields;
``TerminalFormatter`` shortens them for a human reader. ``set_up_logging`` decides where this log and all
others of a process go.
"""

import logging
import re
import sys
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from slipring.protocol.turn_report import TurnReport

if TYPE_CHECKING:
    # Not at run time: a supervisor formats its log with this module and needs no part of a session.
    from slipring.server.observation.ended_turns import EndedTurn

log = logging.getLogger("slipring.turns")

_PLAIN = re.compile(r"[\w.-]+")


def write(turn: "EndedTurn") -> None:
    log.info(TurnLine(turn))


class TurnLine:
    """The log message of a turn, formatted only if a handler emits it."""

    __slots__ = ("_api", "_caller", "_lane", "_report")

    def __init__(self, turn: "EndedTurn") -> None:
        self._report = turn.report
        self._lane = turn.lane
        self._api = turn.origin.api
        self._caller = turn.caller

    def __str__(self) -> str:
        """All fields, as ``key=value``."""
        report, key = self._report, self._caller.key
        fields: dict[str, object] = {
            "response": report.response_id,
            "tenant": plain(self._caller.tenant),
            "key": UNSET if key is None else key.id,
            "lane": UNSET if self._lane is None else self._lane,
            "api": UNSET if self._api == "responses" else self._api,
            "previous": plain(report.previous_response_id),
            "status": report.status,
            "error": report.error_code,
            "model": report.model,
            "bytes": report.request_bytes,
            "items": report.input_items,
            "recognised": report.recognised_items,
            "departed": UNSET if report.departed is UNSET else report.departed.place,
            "dropped": report.dropped_items,
            "safety_id": report.safety_id,
            "flagged": UNSET if report.flagged_by is UNSET else ",".join(report.flagged_by),
            "withheld": UNSET if report.withheld is UNSET else sum(report.withheld.values()),
            "fallback": UNSET if report.fallback is UNSET else f'"{report.fallback}"',
        }
        if report.tokens is not UNSET:
            tokens = report.tokens
            fields |= {
                "rendered": tokens.rendered,
                "input": tokens.input,
                "cached": tokens.cached,
                "output": tokens.output,
            }
        fields |= _stage_times(report)
        fields |= {
            "input_check_ms": report.input_check_ms,
            "send_ms": report.send_ms,
            "total_ms": report.total_ms,
        }
        return " ".join([f"{name}={value}" for name, value in fields.items() if value is not UNSET])

    def short(self) -> str:
        """Model, outcome, tokens and times in human units, and who asked."""
        report, caller = self._report, self._caller
        outcome = report.status
        if report.error_code is not UNSET:
            outcome += f" ({report.error_code})"
        parts = []
        if report.tokens is not UNSET:
            tokens = report.tokens
            parts += [f"{tokens.input:,} in ({tokens.cached:,} cached)", f"{tokens.output:,} out"]
        first_token_ms = report.first_token_ms
        if first_token_ms is not None:
            parts.append(f"first token {_duration(first_token_ms)}")
        parts.append(f"total {_duration(report.total_ms)}")
        if not caller.is_guest:
            parts.append(f"tenant {plain(caller.tenant)}")
        if caller.key is not None:
            parts.append(f"key {caller.key.id}")
        model = "turn" if report.model is UNSET else report.model
        return f"{model} {outcome}: {', '.join(parts)}"


class TerminalFormatter(logging.Formatter):
    """Formats the lines of the turn log as a time and a short text, and all others as configured."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, TurnLine):
            return f"{self.formatTime(record, '%H:%M:%S')} {record.msg.short()}"
        return super().format(record)


def formatter(line: str, *, is_terminal: bool) -> logging.Formatter:
    """Formats log lines: those of turns are short on a terminal, and have all fields elsewhere."""
    return (TerminalFormatter if is_terminal else logging.Formatter)(line)


def _stage_times(report: TurnReport) -> dict[str, float]:
    """Milliseconds by stage; a rollout goes through some stages several times."""
    times: dict[str, float] = {}
    for stage in report.stages:
        name, before = f"{stage.name}_ms", times.get(f"{stage.name}_ms")
        times[name] = stage.duration_ms if before is None else round(before + stage.duration_ms, 3)
    return times


def _duration(ms: float) -> str:
    """A duration in the largest unit that keeps two or three digits, such as ``85 ms`` or ``1.4 s``."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return f"{int(ms // 60_000)} min {int(ms % 60_000 // 1000)} s"


def plain(text: str | UnsetType) -> str | UnsetType:
    """Text from outside, escaped so that it cannot end the line or look like another field."""
    if text is UNSET or _PLAIN.fullmatch(text):
        return text
    return ascii(text).replace(" ", "_")


def set_up_logging(level: str, *, names_process: bool = False) -> None:
    """Log to standard error, with short turn lines if that is a terminal. ``names_process``: several
    processes write there."""
    process = "[%(process)d] " if names_process else ""
    line = f"%(asctime)s %(levelname)s {process}%(name)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(line, is_terminal=sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        # The HTTP library of the model hub's client logs every request.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
