"""Lists what the numbers in the README and the pages rest on: each record with its date, machine, version of
slipring, and the command that measures it again. Fails if a record is missing, or says none of these.

    python benchmarks/claims.py
"""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from slipring import __version__

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMMANDS = {
    "agents/*-pressure": "benchmarks/many_agents.py --pressure",
    "agents/*": "benchmarks/many_agents.py",
    "pictures": "benchmarks/peers/pictures.py vllm vllm-chat llama --write",
    "claude_code": "benchmarks/peers/replay.py vllm llama-server",
    "engines/*": "benchmarks/peers/engines.py",
    "gateways": "benchmarks/peers/gateways.py",
    "scheduler_check": "tests/engines/vllm_plugin/scheduler_check.py --record FILE",
    "session_check_cpu": "benchmarks/session_check.py",
    "session_check_sglang": "benchmarks/sglang_session_check.py",
    "peers/guardrails": "benchmarks/peers/guardrails.py",
    "peers/routers": "benchmarks/peers/routers.py",
    "peers/*": "benchmarks/peers/run.py",
    "loops": "benchmarks/standard.py",
    "fast": "benchmarks/standard.py",
    "deep": "benchmarks/standard.py",
    "recognised": "benchmarks/standard.py",
    "flood": "benchmarks/load.py",
    "tool_output_*": "benchmarks/tool_output.py",
    "*": "benchmarks/{}.py",
}
"""Records by name, and what writes them: the first pattern that matches."""
SIMULATED = ("loop_scheduling",)
"""They depend on no machine: the same on every one, whenever they are computed."""
COUNTED = ("claude_code",)
"""They count tokens, not time, so that the machine does not matter."""


class Claim(NamedTuple):
    """A record, and what it says about itself."""

    name: str
    when: str
    version: str
    machine: str
    command: str

    @property
    def state(self) -> str:
        """``current``, ``older``, ``simulated``, or what is missing."""
        if self.name in SIMULATED:
            return "simulated"
        needed = ("when", "version") if self.name in COUNTED else ("when", "version", "machine")
        missing = [word for word in needed if not getattr(self, word)]
        if missing:
            return f"no {', no '.join(missing)}"
        return "current" if self.version == __version__ else f"older ({self.version})"


def claims() -> list[Claim]:
    """Every record that is kept, by name."""
    return [_claim(path) for path in sorted(RESULTS.rglob("*.json"))]


def _claim(path: Path) -> Claim:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "when" not in record and all(isinstance(each, dict) for each in record.values()):
        record = next(iter(record.values()))  # several runs of one command
    name = path.relative_to(RESULTS).with_suffix("").as_posix()
    versions = record.get("versions") or {}
    return Claim(
        name,
        str(record.get("when") or "")[:10],
        str(versions.get("slipring") or record.get("slipring") or ""),
        _described(record.get("machine") or {}, record.get("gpu")),
        command_of(name),
    )


def _described(machine: dict[str, Any], gpu: object) -> str:
    parts = (gpu, machine.get("cpu"), f"{machine['cores']} cores" if machine else "")
    return ", ".join(str(part) for part in parts if part)


def command_of(name: str) -> str:
    """The command that writes a record."""
    return next(command.format(name) for pattern, command in COMMANDS.items() if fnmatch(name, pattern))


def main() -> int:
    found = claims()
    for claim in found:
        columns = (claim.name, claim.when, claim.state, claim.machine)
        print(
            "  ".join(f"{column:<{width}}" for column, width in zip(columns, (24, 10, 16, 48), strict=True)),
            end="",
        )
        print(f"  python {claim.command}")
    wrong = [claim for claim in found if claim.state.startswith("no ")]
    for claim in wrong:
        print(f"{claim.name}: {claim.state}", file=sys.stderr)
    older = sum(claim.state.startswith("older") for claim in found)
    print(f"{len(found)} records, {older} of them of an earlier version than {__version__}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
