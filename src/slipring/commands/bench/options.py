"""Options of ``slipring bench``, from command-line flags and environment variables.

API keys are read from the environment only: other users can see flags in the process list.
"""

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

from slipring.commands.bench.errors import UsageError
from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.subject.endpoint import Target
from slipring.commands.bench.subject.engines import BadEngine, simulated_speed
from slipring.commands.bench.workloads.catalogue import DEPTHS, WORKLOADS
from slipring.commands.client_environment import KEY_VARIABLE, URL_VARIABLE, api_key, named_url, variable_name
from slipring.commands.flag_values import text, whole

_T = TypeVar("_T")
_KEY_VARIABLES = (KEY_VARIABLE, "SLIPRING_API_KEY")
_NAMES = (*WORKLOADS, "deep", "replay")
_TOKENS_PER_S = 1000.0
_TIMEOUT_S = 300.0
_LOOP_FLAGS = {
    "--workload": "workloads",
    "--mode": "modes",
    "--repeats": "repeats",
    "--lanes": "lanes",
    "--deep": "depths",
    "--replay": "replay",
    "--replay-pauses": "replays_pauses",
    "--tool-ms": "tool_ms",
    "--rtt-ms": "rtt_ms",
    "--tool-choice": "tool_choice",
    "--short-events": "short_events",
    "--html": "html",
    "--svg": "svg",
    "--from": "record_path",
}
"""Flags that ``slipring bench load`` lacks, or defines differently."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write."""

    json: Path | None = None
    html: Path | None = None
    svg: Path | None = None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of one bench."""

    target: Target
    workloads: tuple[str, ...] = ("coding",)
    modes: tuple[str, ...] = tuple(MODES)
    names_modes: bool = False
    """Whether ``--mode`` was given: a mode that cannot be measured is then a failure."""
    repeats: int = 5
    lanes: int = 4
    depths: tuple[int, ...] = DEPTHS
    tool_ms: float = 0.0
    rtt_ms: float = 0.0
    tool_choice: str | None = None
    short_events: bool = False
    """Whether to ask for ``response.created`` and ``response.in_progress`` without instructions and tools."""
    replay: Path | None = None
    replays_pauses: bool = False
    """Whether tools take as long as in the recording."""
    outputs: Outputs = Outputs()
    record_path: Path | None = None
    """A record to show instead of measuring."""


class _RejectedKeyFlag(argparse.Action):
    """Rejects flags for API keys without repeating the key in the error message."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(
            "a key in a flag is visible to other users: name a variable that has it with --api-key-env"
        )


def add_target_flags(parser: argparse.ArgumentParser, *, tokens_per_s: float, timeout_s: float) -> None:
    """Add the flags that describe the endpoint. They have no defaults here, so that a flag that was given can
    be distinguished from one that was not; ``target_from_namespace`` applies the defaults."""
    parser.add_argument(
        "--url",
        type=text,
        help=f"base URL of the API, as in http://host/v1 (default: ${URL_VARIABLE}, else start a server)",
    )
    parser.add_argument(
        "--model", metavar="NAME", type=text, help="model to use (default: the first in /models)"
    )
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        type=variable_name,
        help=f"environment variable with the API key (default: {' or '.join(_KEY_VARIABLES)})",
    )
    parser.add_argument(
        *("--api-key", "--key", "--token"), action=_RejectedKeyFlag, nargs="?", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--engine", metavar="SPEC", type=text, help="engine of the started server (default: simulated)"
    )
    parser.add_argument(
        "--tokens-per-s",
        metavar="RATE",
        type=number(0),
        help=f"simulated decoding speed; 0: unlimited (default: {tokens_per_s:g})",
    )
    parser.add_argument("--serve-flags", metavar="FLAGS", help="further flags of the started server")
    parser.add_argument(
        "--max-output-tokens",
        metavar="N",
        type=whole(1),
        help="limit of each answer, for models that do not stop by themselves (default: none)",
    )
    parser.add_argument(
        "--server-pid",
        metavar="PID",
        type=whole(1),
        help="process id of the server at --url, if it runs on this machine, to measure its CPU",
    )
    parser.add_argument(
        "--timeout-s",
        type=number(0.001),
        metavar="S",
        help=f"time limit of a turn (default: {timeout_s:g})",
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``slipring bench``."""
    add_target_flags(parser, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    parser.add_argument(
        "--workload",
        dest="workloads",
        type=_names("workload", _NAMES),
        metavar="NAME,…",
        help=f"workloads to run: {', '.join(_NAMES)} (default: coding)",
    )
    parser.add_argument(
        "--mode",
        dest="modes",
        type=_names("mode", tuple(MODES)),
        metavar="NAME,…",
        help=f"modes to compare: {', '.join(MODES)} (default: all)",
    )
    parser.add_argument("--repeats", type=whole(1), metavar="N", help="loops per mode (default: 5)")
    parser.add_argument(
        "--lanes", type=whole(1), metavar="N", help="concurrent loops in websocket-lanes (default: 4)"
    )
    parser.add_argument(
        "--deep",
        dest="depths",
        type=_depths,
        metavar="TOKENS,…",
        help="history sizes of the workload deep (default: 20k,75k,150k); implies --workload deep",
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="recorded loop to run; implies --workload replay"
    )
    parser.add_argument(
        "--replay-pauses",
        dest="replays_pauses",
        action="store_true",
        default=None,
        help="let tools take as long as in the recording, instead of --tool-ms; not counted",
    )
    parser.add_argument(
        "--tool-ms",
        type=number(0),
        metavar="MS",
        help="simulated time of each tool; not counted (default: 0)",
    )
    parser.add_argument(
        "--rtt-ms", type=number(0), metavar="MS", help="network round trip to simulate (default: 0)"
    )
    parser.add_argument(
        "--tool-choice",
        choices=("auto", "forced"),
        help="auto: the model decides whether to call a tool; forced: each request decides (default: auto"
        " with the simulated engine, else forced)",
    )
    parser.add_argument(
        "--short-events",
        action="store_true",
        default=None,
        help="ask for first events without instructions and tools, which slipring can send",
    )
    _add_record_flags(parser)


def _add_record_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name files of a measurement."""
    for kind, what in (("json", "the record"), ("html", "a report"), ("svg", "a figure")):
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write {what}")
    parser.add_argument(
        "--from", dest="record_path", type=Path, metavar="FILE", help="show this record instead of measuring"
    )


def loop_flags(namespace: argparse.Namespace) -> list[str]:
    """The given flags that ``slipring bench load`` does not accept."""
    return [flag for flag, name in _LOOP_FLAGS.items() if getattr(namespace, name) is not None]


def target_from_namespace(
    namespace: argparse.Namespace, environ: Mapping[str, str], *, tokens_per_s: float, timeout_s: float
) -> Target:
    """Build the target from parsed flags (see ``add_target_flags``) and ``environ``. Raises
    ``UsageError``."""
    of_started = {"--engine": namespace.engine, "--serve-flags": namespace.serve_flags}
    url: str | None = namespace.url
    url_variable = None
    if url is not None:
        _check_url("--url", url)
        for flag, value in of_started.items():
            if value:
                raise UsageError(
                    f"{flag} applies to the server that the bench starts: it cannot be used with --url"
                )
    elif not any(of_started.values()) and (url := named_url(environ)) is not None:
        _check_url(URL_VARIABLE, url)
        url_variable = URL_VARIABLE
    elif namespace.server_pid is not None:
        raise UsageError("--server-pid needs --url")
    if namespace.engine is not None:
        try:
            simulated_speed(namespace.engine)
        except BadEngine as error:
            raise UsageError(f"--engine: {error}") from None
    return Target(
        url=url,
        url_variable=url_variable,
        key=_key(namespace.api_key_env, environ),
        model=namespace.model,
        engine=namespace.engine,
        tokens_per_s=_or_default(namespace.tokens_per_s, tokens_per_s),
        serve_flags=_serve_flags(namespace.serve_flags or ""),
        server_pid=namespace.server_pid,
        max_output_tokens=namespace.max_output_tokens,
        timeout_s=_or_default(namespace.timeout_s, timeout_s),
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> BenchOptions:
    """Build the options from parsed flags (see ``add_flags``) and ``environ``. Raises ``UsageError``."""
    workloads = namespace.workloads or ()
    if namespace.depths and "deep" not in workloads:
        workloads = (*workloads, "deep")
    if namespace.replay is not None and "replay" not in workloads:
        workloads = (*workloads, "replay")
    if "replay" in workloads and namespace.replay is None:
        raise UsageError("--workload replay needs --replay FILE")
    if namespace.replays_pauses and namespace.replay is None:
        raise UsageError("--replay-pauses needs --replay FILE")
    target = target_from_namespace(namespace, environ, tokens_per_s=_TOKENS_PER_S, timeout_s=_TIMEOUT_S)
    if namespace.rtt_ms and target.url is not None and target.url.startswith("https:"):
        raise UsageError("--rtt-ms works with http:// only")
    return BenchOptions(
        target=target,
        workloads=workloads or ("coding",),
        modes=namespace.modes or tuple(MODES),
        names_modes=namespace.modes is not None,
        repeats=_or_default(namespace.repeats, 5),
        lanes=_or_default(namespace.lanes, 4),
        depths=namespace.depths or DEPTHS,
        tool_ms=_or_default(namespace.tool_ms, 0.0),
        rtt_ms=_or_default(namespace.rtt_ms, 0.0),
        tool_choice=namespace.tool_choice,
        short_events=bool(namespace.short_events),
        replay=namespace.replay,
        replays_pauses=bool(namespace.replays_pauses),
        outputs=Outputs(namespace.json, namespace.html, namespace.svg),
        record_path=namespace.record_path,
    )


def _serve_flags(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--serve-flags: {str(error).lower()}") from None


def _or_default(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _key(variable: str | None, environ: Mapping[str, str]) -> str:
    for name in (variable,) if variable else _KEY_VARIABLES:
        if key := api_key(name, environ):
            return key
    if variable:
        raise UsageError(f"--api-key-env: {variable} is not set")
    return ""


def _check_url(source: str, url: str) -> None:
    """Raise ``UsageError`` for an invalid URL. The message repeats no part that may be a secret. ``source``:
    the flag or variable that it is from."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if "@" in url:
        raise UsageError(f"{source}: user names and passwords are not supported: see --api-key-env")
    if not is_url:
        raise UsageError(f"{source} {url}: not a URL like http://host/v1")
    if parts.query or parts.fragment:
        raise UsageError(f"{source}: query and fragment are not supported: give a URL like http://host/v1")


def number(least: float) -> Callable[[str], float]:
    """A parser of finite numbers, for argparse."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a number, at least {least:g}")
        return value

    return parse


def share(text: str) -> float:
    """Parse a share from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be between 0 and 1; 0.01 is 1 %")
    return value


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
