"""Options of ``slipring bench load``, from command-line flags and environment variables."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipring.commands import argument_parser
from slipring.commands.argument_parser import UsageError, flag, number, share, text, whole
from slipring.commands.bench.load.service_level import ServiceLevel
from slipring.commands.bench.measure.modes import MODES, modes_of
from slipring.commands.bench.options import loop_flags, require_mode
from slipring.commands.bench.subject.endpoint import (
    Target,
    add_target_flags,
    check_url,
    target_from_namespace,
)
from slipring.commands.client_environment import api_key

_MODES = tuple(name for name, mode in MODES.items() if not (mode.has_lanes or mode.is_rollout))

_OF_LOOPS = ("http-full", "websocket")
"""What is compared if no mode is named."""
_WITH_LOOPS = ("--loops", "--turns", "--beside", "--think-ms", "--mode", "--json", "--svg")
_ONLY_WITH_LOOPS = ("--turns", "--beside")
_TOKENS_PER_S = 50.0
_TIMEOUT_S = 30.0
_LOOPS_TIMEOUT_S = 300.0


def _counts(given: str) -> tuple[int, ...]:
    return tuple(map(whole(1), given.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of one load."""

    target: Target
    connections: int = flag(50, "number of connections (default: 50)", type=whole(1), metavar="N")
    step: int | None = flag(
        None, "connections added per level (default: all at once)", type=whole(1), metavar="N"
    )
    ramp_s: float = flag(
        2.0, "time over which a level adds its connections (default: 2)", type=number(0), metavar="S"
    )
    hold_s: float = flag(
        10.0, "time for which a level is measured (default: 10)", type=number(0.1), metavar="S"
    )
    think_ms: float = flag(
        1000.0,
        "pause between an answer and the next turn, varied by ±50%% (default: 1000; 0 with --loops)",
        type=number(0),
        metavar="MS",
    )
    idle: int = flag(
        0, "idle WebSockets that are open beside those connections (default: 0)", type=whole(0), metavar="N"
    )
    processes: int = flag(1, "processes that generate the load (default: 1)", type=whole(1), metavar="N")
    bare: bool = flag(
        False,
        "measure a bare aiohttp WebSocket too that sends the same frames, under the same load",
        action="store_true",
    )
    flood: int = flag(
        0,
        "after the levels, N connections of another tenant send requests without pauses (default: 0)",
        type=whole(0),
        metavar="N",
    )
    flood_key_env: str | None = flag(
        None,
        "environment variable with the API key of that tenant, for a server at --url",
        metavar="VARIABLE",
    )
    loops: tuple[int, ...] = flag(
        (),
        "instead of users who chat: this many loops of a coding agent at once, each from its first turn to"
        " its last, then so many; a number that is named twice is measured twice",
        type=_counts,
        metavar="N,…",
    )
    turns: int = flag(20, "turns of each of these loops (default: 20)", type=whole(1), metavar="N")
    beside: str | None = flag(
        None,
        "run the same loops with full history over this server too, without a key: over the engine itself,"
        " as in http://host/v1",
        type=text,
        metavar="URL",
    )
    mode: str = flag(
        "websocket",
        "mode of the connections (default: websocket; http-full with --api messages or chat; both with"
        " --loops)",
        choices=_MODES,
    )
    modes: tuple[str, ...] = ()
    """Those of loops."""
    slo_ttft_ms: float = flag(
        500.0, "limit of the time to the first token at p95 (default: 500)", type=number(0), metavar="MS"
    )
    slo_errors: float = flag(
        0.01, "limit of the share of failed turns, 0 to 1 (default: 0.01)", type=share, metavar="SHARE"
    )
    slo_pace: float = flag(
        0.95,
        "least speed of the answers, as a share of --tokens-per-s, where that is known (default: 0.95)",
        type=share,
        metavar="SHARE",
    )
    json: Path | None = flag(None, "write the record", type=Path, metavar="FILE")
    svg: Path | None = flag(
        None,
        "draw the number of connections against the time of a turn; with --loops, the number of loops at once"
        " against the time until all have ended",
        type=Path,
        metavar="FILE",
    )
    flood_key: str | None = field(default=None, repr=False)
    """None: that of the users, or one of its own if the bench starts the server."""

    @property
    def most_connections(self) -> int:
        return max(self.loops) if self.loops else self.connections + self.idle + self.flood

    @property
    def levels(self) -> list[int]:
        """Number of connections at each level."""
        step = self.step or self.connections
        return [*range(step, self.connections, step), self.connections]

    @property
    def service_level(self) -> ServiceLevel:
        return ServiceLevel(first_token_ms=self.slo_ttft_ms, errors=self.slo_errors, pace=self.slo_pace)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``slipring bench load``."""
    add_target_flags(parser, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    argument_parser.add_flags(parser, LoadOptions)


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> LoadOptions:
    """Build the options from parsed flags (see ``add_flags``) and ``environ``. Raises ``UsageError``."""
    if misplaced := loop_flags(namespace):
        raise UsageError(f"{misplaced[0]} cannot be used with load (see slipring bench load --help)")
    chosen = argument_parser.given_values(namespace, LoadOptions)
    timeout_s = _LOOPS_TIMEOUT_S if "loops" in chosen else _TIMEOUT_S
    target = target_from_namespace(namespace, environ, tokens_per_s=_TOKENS_PER_S, timeout_s=timeout_s)
    if "loops" in chosen:
        return _of_loops(namespace, target, chosen)
    if alone := [
        name for name in argument_parser.given_names(namespace, LoadOptions) if name in _ONLY_WITH_LOOPS
    ]:
        raise UsageError(f"{alone[0]} needs --loops")
    if target.api != "responses":
        require_mode(chosen.setdefault("mode", "http-full"), target.api)
    options = LoadOptions(target=target, **chosen)
    if options.bare and (options.mode != "websocket" or target.url is not None):
        raise UsageError("--bare compares with the server that the bench starts, over --mode websocket")
    if options.flood_key_env is None:
        return options
    if not (flood_key := api_key(options.flood_key_env, environ)):
        raise UsageError(f"--flood-key-env: {options.flood_key_env} is not set")
    return replace(options, flood_key=flood_key)


def _of_loops(namespace: argparse.Namespace, target: Target, chosen: dict[str, Any]) -> LoadOptions:
    """The options of ``--loops``."""
    given = argument_parser.given_names(namespace, LoadOptions)
    if others := [name for name in given if name not in _WITH_LOOPS]:
        raise UsageError(f"{others[0]} cannot be used with --loops: it is for users who chat")
    if beside := chosen.get("beside"):
        check_url("--beside", beside)
    known = modes_of(target.api)
    if "mode" in chosen:
        require_mode(chosen["mode"], target.api)
        modes: tuple[str, ...] = (chosen["mode"],)
    else:
        modes = tuple(name for name in _OF_LOOPS if name in known)
    return LoadOptions(target=target, modes=modes, **{"think_ms": 0.0, **chosen})
