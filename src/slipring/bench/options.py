"""What a bench is told on the command line and by the environment.

Keys come from the environment alone: flags can be seen in the list of processes.
"""

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

from slipring.bench.engines import BadEngine, simulated_speed
from slipring.bench.modes import MODES
from slipring.bench.workloads.catalogue import DEPTHS, WORKLOADS

_T = TypeVar("_T")
_KEY_VARIABLES = ("OPENAI_API_KEY", "SLIPRING_API_KEY")
_NAMES = (*WORKLOADS, "deep", "replay")
_TOKENS_PER_S = 1000.0
_TIMEOUT_S = 300.0
_OF_LOOPS = {
    "--workload": "workloads",
    "--mode": "modes",
    "--repeats": "repeats",
    "--lanes": "lanes",
    "--deep": "depths",
    "--replay": "replay",
    "--tool-ms": "tool_ms",
    "--rtt-ms": "rtt_ms",
    "--tool-choice": "tool_choice",
    "--html": "html",
    "--svg": "svg",
    "--from": "kept",
}
"""Flags that a load does not have, or has in another sense."""


class UsageError(Exception):
    """Flags that do not go together. The text is one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured. Its repr shows no key."""

    url: str | None = None
    """None: a server that the bench starts itself."""
    key: str = field(default="", repr=False)
    model: str | None = None
    engine: str | None = None
    """Of a server that the bench starts itself; None: the simulated one."""
    tokens_per_s: float = 1000.0
    serve_flags: tuple[str, ...] = ()
    server_pid: int | None = None
    timeout_s: float = 300.0
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go beside the screen."""

    json: Path | None = None
    html: Path | None = None
    svg: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """One bench."""

    target: Target
    workloads: tuple[str, ...] = ("coding",)
    modes: tuple[str, ...] = tuple(MODES)
    names_modes: bool = False
    """Whether the modes were asked for by name, so that none of them may be skipped without a word."""
    repeats: int = 5
    lanes: int = 4
    depths: tuple[int, ...] = DEPTHS
    tool_ms: float = 0.0
    rtt_ms: float = 0.0
    tool_choice: str | None = None
    replay: Path | None = None
    outputs: Outputs = Outputs()
    kept: Path | None = None
    """A record that is shown again, instead of measuring."""


class _KeyFlag(argparse.Action):
    """A flag that there is not: what follows it is a secret, and must not be repeated."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(
            "keys are no flags, which others can see: name a variable that holds it with --api-key-env"
        )


def add_target_flags(parser: argparse.ArgumentParser, *, tokens_per_s: float, timeout_s: float) -> None:
    """Flags that say what is measured. None has a default here, where it could not be told from a flag that
    was given: see ``target_from_namespace``."""
    parser.add_argument(
        "--url", help="where the API is, as in http://host/v1 (default: starts a server itself)"
    )
    parser.add_argument("--model", metavar="NAME", help="model to ask (default: the first that is listed)")
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help=f"variable that holds the API key (default: {' or '.join(_KEY_VARIABLES)})",
    )
    parser.add_argument(
        *("--api-key", "--key", "--token"), action=_KeyFlag, nargs="?", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--engine", metavar="SPEC", help="engine of the server that is started (default: simulated)"
    )
    parser.add_argument(
        "--tokens-per-s",
        metavar="RATE",
        type=number(0),
        help=f"decoding speed that is simulated; 0: unlimited (default: {tokens_per_s:g})",
    )
    parser.add_argument("--serve-flags", metavar="FLAGS", help="further flags of the server that is started")
    parser.add_argument(
        "--max-output-tokens",
        metavar="N",
        type=whole(1),
        help="longest answer, for models that go on and on (default: none)",
    )
    parser.add_argument(
        "--server-pid",
        metavar="PID",
        type=whole(1),
        help="process behind --url on this machine, to measure its CPU",
    )
    parser.add_argument(
        "--timeout-s",
        type=number(0.001),
        metavar="S",
        help=f"longest turn (default: {timeout_s:g})",
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a bench."""
    add_target_flags(parser, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    parser.add_argument(
        "--workload",
        dest="workloads",
        type=_names("workload", _NAMES),
        metavar="NAME,…",
        help=f"what the loops do: {', '.join(_NAMES)} (default: coding)",
    )
    parser.add_argument(
        "--mode",
        dest="modes",
        type=_names("mode", tuple(MODES)),
        metavar="NAME,…",
        help=f"how they talk: {', '.join(MODES)} (default: all)",
    )
    parser.add_argument("--repeats", type=whole(1), metavar="N", help="loops of each mode (default: 5)")
    parser.add_argument(
        "--lanes", type=whole(1), metavar="N", help="loops at once in websocket-lanes (default: 4)"
    )
    parser.add_argument(
        "--deep",
        dest="depths",
        type=_depths,
        metavar="TOKENS,…",
        help="where deep begins (default: 20k,75k,150k); implies --workload deep",
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="recorded loop to play; implies --workload replay"
    )
    parser.add_argument(
        "--tool-ms", type=number(0), metavar="MS", help="time that tools take; not counted (default: 0)"
    )
    parser.add_argument("--rtt-ms", type=number(0), metavar="MS", help="round trip to imitate (default: 0)")
    parser.add_argument(
        "--tool-choice",
        choices=("auto", "forced"),
        help="whether the model is left to call tools, or told in each turn (default: forced, but auto with"
        " the simulated engine)",
    )
    for kind, what in (("json", "the record"), ("html", "a page"), ("svg", "a figure")):
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write {what}")
    parser.add_argument(
        "--from", dest="kept", type=Path, metavar="FILE", help="show a record again, and measure nothing"
    )


def flags_of_loops(namespace: argparse.Namespace) -> list[str]:
    """Those among the parsed flags that are for loops alone."""
    return [flag for flag, name in _OF_LOOPS.items() if getattr(namespace, name) is not None]


def target_from_namespace(
    namespace: argparse.Namespace, environ: Mapping[str, str], *, tokens_per_s: float, timeout_s: float
) -> Target:
    """What parsed flags (see ``add_target_flags``) and ``environ`` want measured, or ``UsageError``."""
    if namespace.url is not None:
        _check_url(namespace.url)
        for flag, value in (("--engine", namespace.engine), ("--serve-flags", namespace.serve_flags)):
            if value:
                raise UsageError(f"{flag} is for the server that is started without --url")
    elif namespace.server_pid is not None:
        raise UsageError("--server-pid is for a server that is named with --url")
    if namespace.engine is not None:
        try:
            simulated_speed(namespace.engine)
        except BadEngine as error:
            raise UsageError(f"--engine: {error}") from None
    return Target(
        url=namespace.url,
        key=_key(namespace.api_key_env, environ),
        model=namespace.model,
        engine=namespace.engine,
        tokens_per_s=_given(namespace.tokens_per_s, tokens_per_s),
        serve_flags=tuple(shlex.split(namespace.serve_flags or "")),
        server_pid=namespace.server_pid,
        max_output_tokens=namespace.max_output_tokens,
        timeout_s=_given(namespace.timeout_s, timeout_s),
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Options:
    """The options that parsed flags (see ``add_flags``) and ``environ`` describe, or ``UsageError``."""
    workloads = namespace.workloads or ()
    if namespace.depths and "deep" not in workloads:
        workloads = (*workloads, "deep")
    if namespace.replay is not None and "replay" not in workloads:
        workloads = (*workloads, "replay")
    if "replay" in workloads and namespace.replay is None:
        raise UsageError("--workload replay needs --replay FILE")
    target = target_from_namespace(namespace, environ, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    if namespace.rtt_ms and target.url is not None and target.url.startswith("https:"):
        raise UsageError("--rtt-ms works with http:// only")
    return Options(
        target=target,
        workloads=workloads or ("coding",),
        modes=namespace.modes or tuple(MODES),
        names_modes=namespace.modes is not None,
        repeats=_given(namespace.repeats, 5),
        lanes=_given(namespace.lanes, 4),
        depths=namespace.depths or DEPTHS,
        tool_ms=_given(namespace.tool_ms, 0.0),
        rtt_ms=_given(namespace.rtt_ms, 0.0),
        tool_choice=namespace.tool_choice,
        replay=namespace.replay,
        outputs=Outputs(namespace.json, namespace.html, namespace.svg),
        kept=namespace.kept,
    )


def _given(value: _T | None, otherwise: _T) -> _T:
    return otherwise if value is None else value


def _key(variable: str | None, environ: Mapping[str, str]) -> str:
    for name in (variable,) if variable else _KEY_VARIABLES:
        if key := environ.get(name, "").strip():
            return key
    if variable:
        raise UsageError(f"--api-key-env: {variable} is not set")
    return ""


def _check_url(url: str) -> None:
    """What is wrong is not repeated where it may hold a secret."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if "@" in url:
        raise UsageError("--url: names and passwords in a URL are not sent: see --api-key-env")
    if not is_url:
        raise UsageError(f"--url {url}: not a URL as in http://host/v1")
    if parts.query or parts.fragment:
        raise UsageError("--url: what follows ? or # cannot be kept: a URL as in http://host/v1 is needed")


def whole(least: int) -> Callable[[str], int]:
    def read(given: str) -> int:
        if not (given.isascii() and given.isdecimal() and int(given) >= least):
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} on")
        return int(given)

    return read


def number(least: float) -> Callable[[str], float]:
    def read(given: str) -> float:
        try:
            value = float(given)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a number from {least:g} on")
        return value

    return read


def share(given: str) -> float:
    """A part of a whole, from 0 to 1."""
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be a share from 0 to 1, as in 0.01 for 1 of 100")
    return value


def _names(what: str, known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def read(given: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {what} {name!r}; there are {', '.join(known)}")
        return names

    return read


def _depths(given: str) -> tuple[int, ...]:
    try:
        depths = tuple(
            int(each[:-1]) * 1000 if each.endswith("k") else int(each) for each in given.lower().split(",")
        )
    except ValueError:
        depths = ()
    if not depths or min(depths) < 1000:
        raise argparse.ArgumentTypeError("must be numbers of tokens from 1k on, as in 20k,75k")
    return depths
