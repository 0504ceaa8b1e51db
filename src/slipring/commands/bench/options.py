"""Options of ``slipring bench``, from command-line flags and environment variables."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipring.commands import argument_parser
from slipring.commands.argument_parser import UsageError, flag, number, whole
from slipring.commands.bench.client.transports import Api
from slipring.commands.bench.measure.modes import MODES, modes_of
from slipring.commands.bench.subject.endpoint import Target, add_target_flags, target_from_namespace
from slipring.commands.bench.workloads.catalogue import DEPTHS, WORKLOADS

_NAMES = (*WORKLOADS, "deep", "replay")
_TOKENS_PER_S = 1000.0
_TIMEOUT_S = 300.0


def _names(what: str, known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown {what} {name!r}; choose from {', '.join(known)}")
        return names

    return parse


def _depths(text: str) -> tuple[int, ...]:
    try:
        depths = tuple(
            int(each[:-1]) * 1000 if each.endswith("k") else int(each) for each in text.lower().split(",")
        )
    except ValueError:
        depths = ()
    if not depths or min(depths) < 1000:
        raise argparse.ArgumentTypeError("must be numbers of tokens, at least 1k, as in 20k,75k")
    return depths


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write."""

    json: Path | None = flag(None, "write the record", type=Path, metavar="FILE")
    html: Path | None = flag(None, "write a report", type=Path, metavar="FILE")
    svg: Path | None = flag(None, "write a figure", type=Path, metavar="FILE")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of one bench."""

    target: Target
    workloads: tuple[str, ...] = flag(
        ("coding",),
        f"workloads to run: {', '.join(_NAMES)} (default: coding)",
        name="--workload",
        type=_names("workload", _NAMES),
        metavar="NAME,…",
    )
    modes: tuple[str, ...] = flag(
        tuple(MODES),
        f"modes to compare: {', '.join(MODES)} (default: all that the API has)",
        name="--mode",
        type=_names("mode", tuple(MODES)),
        metavar="NAME,…",
    )
    repeats: int = flag(5, "loops per mode (default: 5)", type=whole(1), metavar="N")
    lanes: int = flag(4, "concurrent loops in websocket-lanes (default: 4)", type=whole(1), metavar="N")
    depths: tuple[int, ...] = flag(
        DEPTHS,
        "history sizes of the workload deep (default: 20k,75k,150k); implies --workload deep",
        name="--deep",
        type=_depths,
        metavar="TOKENS,…",
    )
    replay: Path | None = flag(
        None, "recorded loop to run; implies --workload replay", type=Path, metavar="FILE"
    )
    replays_pauses: bool = flag(
        False,
        "let tools take as long as in the recording, instead of --tool-ms; not counted",
        name="--replay-pauses",
        action="store_true",
    )
    tool_ms: float = flag(
        0.0, "simulated time of each tool; not counted (default: 0)", type=number(0), metavar="MS"
    )
    rtt_ms: float = flag(0.0, "network round trip to simulate (default: 0)", type=number(0), metavar="MS")
    tool_choice: str | None = flag(
        None,
        "auto: the model decides whether to call a tool; forced: each request decides (default: auto with"
        " the simulated engine, else forced)",
        choices=("auto", "forced"),
    )
    short_events: bool = flag(
        False,
        "ask for first events without instructions and tools, which slipring can send",
        action="store_true",
    )
    record_path: Path | None = flag(
        None, "show this record instead of measuring", name="--from", type=Path, metavar="FILE"
    )
    names_modes: bool = False
    """Whether ``--mode`` was given: a mode that cannot be measured is then a failure."""
    outputs: Outputs = Outputs()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``slipring bench``."""
    add_target_flags(parser, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    argument_parser.add_flags(parser, BenchOptions)
    argument_parser.add_flags(parser, Outputs)


def loop_flags(namespace: argparse.Namespace) -> list[str]:
    """The given flags that ``slipring bench load`` lacks, or defines differently."""
    found = argument_parser.given_names(namespace, BenchOptions) + argument_parser.given_names(
        namespace, Outputs
    )
    return [name for name in found if name not in ("--json", "--svg")]


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> BenchOptions:
    """Build the options from parsed flags (see ``add_flags``) and ``environ``. Raises ``UsageError``."""
    chosen = argument_parser.given_values(namespace, BenchOptions)
    workloads = chosen.get("workloads", ())
    for name, needed in (("deep", "depths"), ("replay", "replay")):
        if needed in chosen and name not in workloads:
            workloads = (*workloads, name)
    if "replay" not in chosen and ("replay" in workloads or "replays_pauses" in chosen):
        what = "--workload replay" if "replay" in workloads else "--replay-pauses"
        raise UsageError(f"{what} needs --replay FILE")
    target = target_from_namespace(namespace, environ, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    if chosen.get("rtt_ms") and target.url is not None and target.url.startswith("https:"):
        raise UsageError("--rtt-ms works with http:// only")
    chosen |= {"workloads": workloads} if workloads else {}
    names_modes = "modes" in chosen
    if names_modes:
        for name in chosen["modes"]:
            require_mode(name, target.api)
    else:
        chosen["modes"] = tuple(modes_of(target.api))
    outputs = Outputs(**argument_parser.given_values(namespace, Outputs))
    return BenchOptions(target, names_modes=names_modes, outputs=outputs, **chosen)


def require_mode(name: str, api: Api) -> None:
    """Raise ``UsageError`` if an API does not have a mode."""
    if name not in (known := modes_of(api)):
        raise UsageError(f"--mode {name} cannot be used with --api {api}: choose from {', '.join(known)}")
