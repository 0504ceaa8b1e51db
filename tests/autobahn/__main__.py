"""`make autobahn`: real servers, and Autobahn's fuzzing client against the socket that repeats what it hears.

The exit code says whether every case came out as docs/conformance.md has it. The suite is written in Python 2
and lives in an environment of its own. What it finds is printed by section and kept as its own report.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATIENCE_S = 60
_GROUPS = {
    # By name: what the server is started with, and the cases.
    "plain": ((), ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"]),
    "compression": (("--compression",), ["12.*", "13.*"]),
}
_NON_STRICT = frozenset({"6.4.1", "6.4.2", "6.4.3", "6.4.4"})
"""Text that is not UTF-8 is noticed when its message is complete, not at the first bad byte."""
_INFORMATIONAL = frozenset({"7.1.6", "7.13.1", "7.13.2"})
"""Anything goes, as the suite says itself."""


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _server(flags: tuple[str, ...]) -> Iterator[str]:
    """A server with the settings that it usually has, and the echo; where the echo is."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    command = [sys.executable, "-m", "slipring", "serve", "--port", "0", "--store", "memory"]
    process = subprocess.Popen(
        [*command, "--engine", "simulated", *flags],
        env={**environ, "SLIPRING_ECHO": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        root = process.stdout.readline().split()[-1].removesuffix("/v1")
        yield root.replace("http://", "ws://") + "/slipring/echo"
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


def _run(tools: Path, reports: Path, group: str, url: str, seconds: float) -> dict[str, Any]:
    """What the suite says of each case; nothing if it does not come to an end."""
    reports.mkdir(parents=True, exist_ok=True)
    spec = reports / "spec.json"
    server = {"agent": "slipring", "url": url}
    asked = {"outdir": str(reports), "servers": [server], "cases": _GROUPS[group][1], "exclude-cases": []}
    spec.write_text(json.dumps(asked))
    command = [str(tools / "bin" / "wstest"), "--mode", "fuzzingclient", "--spec", str(spec)]
    index = reports / "index.json"
    index.unlink(missing_ok=True)
    with (reports / "log").open("wb") as log:
        try:
            environ = {**os.environ, "PYTHONUSERBASE": str(tools)}
            subprocess.run(command, check=True, env=environ, stdout=log, stderr=log, timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            return {}
    found: dict[str, Any] = json.loads(index.read_text())["slipring"]
    return found


def _is_expected(case: str, result: dict[str, Any]) -> bool:
    if case in _INFORMATIONAL:
        return result["behavior"] == "INFORMATIONAL"
    behaviours = ("OK", "NON-STRICT") if case in _NON_STRICT else ("OK",)
    return result["behavior"] in behaviours and result["behaviorClose"] == "OK"


def _tell(results: dict[str, Any]) -> int:
    """Print what was found; how many cases came out otherwise than they should."""
    sections: dict[int, Counter[str]] = {}
    for case, result in results.items():
        sections.setdefault(int(case.split(".")[0]), Counter())[result["behavior"]] += 1
    for section, counts in sorted(sections.items()):
        _say(f"  {section}.*: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    others = {case: result for case, result in results.items() if not _is_expected(case, result)}
    for case, result in others.items():
        _say(f"  {case}: {result['behavior']}, close {result['behaviorClose']}")
    return len(others)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make autobahn", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="where the suite is installed")
    parser.add_argument("--only", choices=_GROUPS, help="one group of cases")
    parser.add_argument("--seconds", type=int, default=3600, help="for all of it")
    arguments = parser.parse_args()
    tools = arguments.tools.absolute()
    until = time.monotonic() + arguments.seconds
    wrong = 0
    for group, (flags, cases) in _GROUPS.items():
        if arguments.only not in (None, group):
            continue
        _say(f"{group}: {' '.join(cases)}")
        reports = tools / "reports" / group
        with _server(flags) as url:
            results = _run(tools, reports, group, url, until - time.monotonic())
        wrong += _tell(results) if results else 1
        _say(f"  {reports / 'index.html'}" if results else "  not finished in time")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
