"""Options of ``slipring bench load``, from command-line flags and environment variables."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipring.commands.bench.errors import UsageError
from slipring.commands.bench.load.results import ServiceLevel
from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.options import add_target_flags, loop_flags, number, share, target_from_namespace
from slipring.commands.bench.subject.endpoint import Target
from slipring.commands.client_environment import api_key
from slipring.commands.flag_values import whole

_MODES = tuple(name for name, mode in MODES.items() if not (mode.has_lanes or mode.is_rollout))

_TOKENS_PER_S = 50.0
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of one load."""

    target: Target
    service_level: ServiceLevel
    connections: int = 50
    step: int | None = None
    """Connections added per level; None: all at once."""
    ramp_s: float = 2.0
    hold_s: float = 10.0
    think_ms: float = 1000.0
    mode: str = "websocket"
    idle: int = 0
    """Idle connections, beside those of users."""
    processes: int = 1
    """Processes that generate the load."""
    bare: bool = False
    """Whether to measure a bare aiohttp socket too."""
    flood: int = 0
    """Connections of another tenant that floods the server after the levels."""
    flood_key: str | None = field(default=None, repr=False)
    """Key of that tenant; None: that of the users, or one of its own if the bench starts the server."""
    json: Path | None = None

    @property
    def levels(self) -> list[int]:
        """Number of connections at each level."""
        step = self.step or self.connections
        return [*range(step, self.connections, step), self.connections]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``slipring bench load``. Flags that ``slipring bench`` also has must not have a
    default: it would override a value given before ``load``."""
    add_target_flags(parser, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    _add_connection_flags(parser)
    _add_comparison_flags(parser)
    add = parser.add_argument
    add("--mode", choices=_MODES, default="websocket", help="mode of the connections (default: websocket)")
    _add_service_level_flags(parser)
    add("--json", type=Path, metavar="FILE", help="write the record")


def _add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """The connections of each level, and who opens them."""
    add = parser.add_argument
    add("--connections", type=whole(1), default=50, metavar="N", help="number of connections (default: 50)")
    add(
        *("--step",),
        type=whole(1),
        default=None,
        metavar="N",
        help="connections added per level (default: all at once)",
    )
    add(
        "--ramp-s",
        type=number(0),
        default=2.0,
        metavar="S",
        help="time over which a level adds its connections (default: 2)",
    )
    add(
        "--hold-s",
        type=number(0.1),
        default=10.0,
        metavar="S",
        help="time for which a level is measured (default: 10)",
    )
    add(
        *("--think-ms",),
        type=number(0),
        default=1000.0,
        metavar="MS",
        help="pause between an answer and the next turn, varied by ±50%% (default: 1000)",
    )
    add(
        *("--idle",),
        type=whole(0),
        default=0,
        metavar="N",
        help="idle WebSockets that are open beside those connections (default: 0)",
    )
    add(
        *("--processes",),
        type=whole(1),
        default=1,
        metavar="N",
        help="processes that generate the load (default: 1)",
    )


def _add_comparison_flags(parser: argparse.ArgumentParser) -> None:
    """What is measured beside the levels: a bare socket, and a flood by another tenant."""
    add = parser.add_argument
    add(
        *("--bare",),
        action="store_true",
        default=False,
        help="measure a bare aiohttp WebSocket too that sends the same frames, under the same load",
    )
    add(
        *("--flood",),
        type=whole(0),
        default=0,
        metavar="N",
        help="after the levels, N connections of another tenant send requests without pauses (default: 0)",
    )
    add(
        *("--flood-key-env",),
        default=None,
        metavar="VARIABLE",
        help="environment variable with the API key of that tenant, for a server at --url",
    )


def _add_service_level_flags(parser: argparse.ArgumentParser) -> None:
    """What a level must keep in order to hold."""
    add = parser.add_argument
    add(
        *("--slo-ttft-ms",),
        type=number(0),
        default=500.0,
        metavar="MS",
        help="limit of the time to the first token at p95 (default: 500)",
    )
    add(
        *("--slo-errors",),
        type=share,
        default=0.01,
        metavar="SHARE",
        help="limit of the share of failed turns, 0 to 1 (default: 0.01)",
    )
    add(
        *("--slo-pace",),
        type=share,
        default=0.95,
        metavar="SHARE",
        help="least speed of the answers, as a share of --tokens-per-s, where that is known (default: 0.95)",
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> LoadOptions:
    """Build the options from parsed flags (see ``add_flags``) and ``environ``. Raises ``UsageError``."""
    if misplaced := loop_flags(namespace):
        raise UsageError(f"{misplaced[0]} cannot be used with load (see slipring bench load --help)")
    if namespace.json is not None and not namespace.json.parent.is_dir():
        raise UsageError(f"cannot write {namespace.json}: there is no directory {namespace.json.parent}")
    target = target_from_namespace(namespace, environ, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    if namespace.bare and (namespace.mode != "websocket" or target.url is not None):
        raise UsageError("--bare compares with the server that the bench starts, over --mode websocket")
    flood_key_variable = namespace.flood_key_env
    flood_key = api_key(flood_key_variable, environ) if flood_key_variable is not None else None
    if flood_key == "":
        raise UsageError(f"--flood-key-env: {flood_key_variable} is not set")
    return LoadOptions(
        target=target,
        service_level=ServiceLevel(
            first_token_ms=namespace.slo_ttft_ms, errors=namespace.slo_errors, pace=namespace.slo_pace
        ),
        connections=namespace.connections,
        step=namespace.step,
        ramp_s=namespace.ramp_s,
        hold_s=namespace.hold_s,
        think_ms=namespace.think_ms,
        mode=namespace.mode,
        idle=namespace.idle,
        processes=namespace.processes,
        bare=namespace.bare,
        flood=namespace.flood,
        flood_key=flood_key,
        json=namespace.json,
    )
