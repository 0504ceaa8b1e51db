"""Options of ``slipring bench``, from command-line flags and environment variables.

API keys are read from the environment only: other users can see flags in the process list.
"""

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, get_args
from urllib.parse import urlsplit

from slipring.commands import flags
from slipring.commands.bench.client.transports import Api
from slipring.commands.bench.measure.modes import MODES, modes_of
from slipring.commands.bench.subject.endpoint import Target
from slipring.commands.bench.subject.simulated_engine import BadEngine, simulated_speed
from slipring.commands.bench.workloads.catalogue import DEPTHS, WORKLOADS
from slipring.commands.client_environment import KEY_VARIABLE, URL_VARIABLE, api_key, named_url, variable_name
from slipring.commands.failures import UsageError
from slipring.commands.flags import flag, number, text, whole

_KEY_VARIABLES = (KEY_VARIABLE, "SLIPRING_API_KEY")
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
    parser.add_argument(
        "--api",
        choices=get_args(Api),
        help="API of the requests; messages and chat send the whole conversation in every turn, as clients of"
        " these APIs do, and know the modes http-full and http-full-newconn only (default: responses)",
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
    flags.add_flags(parser, BenchOptions)
    flags.add_flags(parser, Outputs)


def loop_flags(namespace: argparse.Namespace) -> list[str]:
    """The given flags that ``slipring bench load`` lacks, or defines differently."""
    found = flags.given_names(namespace, BenchOptions) + flags.given_names(namespace, Outputs)
    return [name for name in found if name not in ("--json", "--svg")]


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
        for name, value in of_started.items():
            if value:
                raise UsageError(
                    f"{name} applies to the server that the bench starts: it cannot be used with --url"
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
        tokens_per_s=tokens_per_s if namespace.tokens_per_s is None else namespace.tokens_per_s,
        serve_flags=_serve_flags(namespace.serve_flags or ""),
        server_pid=namespace.server_pid,
        max_output_tokens=namespace.max_output_tokens,
        api=namespace.api or "responses",
        timeout_s=namespace.timeout_s or timeout_s,
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> BenchOptions:
    """Build the options from parsed flags (see ``add_flags``) and ``environ``. Raises ``UsageError``."""
    chosen = flags.given(namespace, BenchOptions)
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
    outputs = Outputs(**flags.given(namespace, Outputs))
    return BenchOptions(target, names_modes=names_modes, outputs=outputs, **chosen)


def require_mode(name: str, api: Api) -> None:
    """Raise ``UsageError`` if an API does not have a mode."""
    if name not in (known := modes_of(api)):
        raise UsageError(f"--mode {name} cannot be used with --api {api}: choose from {', '.join(known)}")


def _serve_flags(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--serve-flags: {str(error).lower()}") from None


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
