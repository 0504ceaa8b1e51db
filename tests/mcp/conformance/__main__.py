"""`make conformance-mcp`: runs the client scenarios of the official conformance suite with slipring's client.

The exit code is 0 if every scenario that applies passes at every revision, every other one fails, and the
suite has no scenario that is in neither list. So a new version of the suite, or a scenario that begins to
pass, has to be looked at. ``docs/conformance.md`` has the same lists.
"""

import argparse
import asyncio
import re
import sys
from pathlib import Path

from tests.clients.real.installing import CannotInstall, Workshop
from tests.mcp.conformance.scenarios import APPLICABLE, NOT_APPLICABLE, reason_of

_SUITE = "mcp-conformance"
_ROOT = Path(__file__).parents[3]
_LISTED = re.compile(r"^  - (\S+) \[([^\]]+)\]$", re.MULTILINE)
_REVISION = re.compile(r"\d{4}-\d\d-\d\d")
_NOTHING = re.compile(r"^Passed: 0/0", re.MULTILINE)
_FAILING_MS = 8000
_AT_ONCE = 2


class Suite:
    """The installed suite."""

    def __init__(self, workshop: Workshop) -> None:
        workshop.install(_SUITE)
        self._start = (str(workshop.node), str(workshop.package(_SUITE) / "dist" / "index.js"))

    async def scenarios(self) -> dict[str, list[str]]:
        """Return the client scenarios, each with the revisions of the protocol that have it."""
        _, output = await self._run("list", "--client")
        return {name: _REVISION.findall(revisions) for name, revisions in _LISTED.findall(output)}

    async def passes(self, scenario: str, revision: str | None, timeout_ms: int) -> tuple[bool, str]:
        """Run a scenario at a revision; return whether it passed, and the suite's output."""
        command = f"{sys.executable} -m tests.mcp.conformance.client"
        version = () if revision is None else ("--spec-version", revision)
        timeout = ("--timeout", str(timeout_ms))
        code, output = await self._run(
            "client", "--command", command, "--scenario", scenario, *version, *timeout
        )
        # A scenario all of whose checks are skipped has tested nothing.
        return code == 0 and not _NOTHING.search(output), output

    async def _run(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *self._start,
            *arguments,
            cwd=_ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


def _print(line: str) -> None:
    print(line, flush=True)


async def _run_applicable(suite: Suite, listed: dict[str, list[str]]) -> int:
    faults = 0
    for scenario in APPLICABLE:
        for revision in listed[scenario]:
            passed, output = await suite.passes(scenario, revision, 30_000)
            _print(f"{'passed' if passed else 'FAILED'}  {scenario} at {revision}")
            if not passed:
                faults += 1
                _print(output)
    return faults


async def _run_others(suite: Suite, names: list[str], listed: dict[str, list[str]]) -> int:
    """Run what must fail, at its newest revision."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def fails(name: str) -> bool:
        async with places:
            passed, _ = await suite.passes(name, listed[name][-1] if listed[name] else None, _FAILING_MS)
        _print(f"{'PASSED' if passed else 'does not apply'}  {name}: {reason_of(name)}")
        return not passed

    return (await asyncio.gather(*map(fails, names))).count(False)


async def _main(root: Path) -> int:
    try:
        suite = Suite(Workshop(root))
    except CannotInstall as reason:
        _print(f"the suite cannot be installed: {reason}")
        return 1
    listed = await suite.scenarios()
    others = [name for name in listed if name not in APPLICABLE]
    unknown = [name for name in others if reason_of(name) is None]
    gone = [name for name in APPLICABLE if name not in listed]
    unused = [
        pattern for pattern in NOT_APPLICABLE if not any(re.fullmatch(pattern, name) for name in others)
    ]
    if unknown or gone or unused or not listed:
        _print(f"the lists are not those of the suite: new {unknown}, gone {gone + unused}")
        return 1
    faults = await _run_applicable(suite, listed)
    faults += await _run_others(suite, others, listed)
    _print(f"{len(APPLICABLE)} scenarios apply, {len(others)} do not; {faults} surprises")
    return 1 if faults else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="make conformance-mcp", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(".mcp"), help="where the suite is installed")
    sys.exit(asyncio.run(_main(parser.parse_args().root)))


if __name__ == "__main__":
    main()
