"""Starts the victim's process, reads its reports, and computes percentiles of its latency."""

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.attack.server import ENGINES, PACE_MS, VICTIM_KEY, Server, Spec

_MODEL_PACE_MS = 60.0
"""Approximate time per event of the embedded model."""
_ANSWER_S = 90.0
"""Longer than the victim's own time limit of a minute for one turn."""


@dataclass(frozen=True)
class Times:
    """The victim's times per event in ms."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, waits_ms: Sequence[float], pace_ms: float) -> "Times":
        """Compute percentiles. During a long wait, further events would have been due, but were not
        requested: each long wait counts as all of them."""
        if not waits_ms:
            return cls()
        every = sorted(_expanded(waits_ms, pace_ms))
        return cls(len(waits_ms), every[len(every) // 2], every[int(len(every) * 0.99)], every[-1])


def _expanded(waits_ms: Sequence[float], pace_ms: float) -> Iterator[float]:
    for wait in waits_ms:
        while wait > 2 * pace_ms:
            yield wait
            wait -= pace_ms
        yield wait


@dataclass
class Report:
    """The victim's findings in a period."""

    times: Times = field(default_factory=Times)
    model_times: Times | None = None
    """Times of the embedded model, if there is one, without reading the prompt."""
    lag: Times = field(default_factory=Times)
    """How late the victim's own timers were, which the server has no part in."""
    faults: list[str] = field(default_factory=list)
    turns: int = 0


class Watch:
    """A running victim."""

    def __init__(self, process: "subprocess.Popen[str]", models: list[str]) -> None:
        self._process = process
        self._models = models

    def cut(self) -> Report:
        """Return the findings since the last cut."""
        report = self._ask("cut")
        if report is None:
            return Report(faults=["the victim's process does not answer"])
        first, *others = (report["waits_ms"][model] for model in self._models)
        return Report(
            times=Times.of(first, PACE_MS),
            model_times=Times.of(others[0], _MODEL_PACE_MS) if others else None,
            lag=Times.of(report["lags_ms"], PACE_MS),
            faults=report["faults"],
            turns=sum(report["turns"].values()),
        )

    def whole_turns(self, within_s: float) -> bool:
        """Wait until each transport has completed a whole turn since the last cut; return whether it has."""
        end, wanted = time.monotonic() + within_s, 2 + len(self._models)
        while time.monotonic() < end:
            turns = self._ask("look")
            if turns is not None and len(turns) == wanted:
                return True
            time.sleep(0.05)
        return False

    def _ask(self, command: str) -> dict[str, Any] | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
            if select.select([self._process.stdout], [], [], _ANSWER_S)[0]:
                return dict(json.loads(self._process.stdout.readline() or "{}")) or None
        return None


@contextlib.contextmanager
def watching(server: Server, spec: Spec, pause_s: float) -> Iterator[Watch]:
    """Run a victim of this server until the block ends. It pauses between its turns."""
    models = list(ENGINES[spec.engine])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.victim", server.url, VICTIM_KEY, str(pause_s), *models],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Watch(process, models)
    finally:
        process.kill()
        process.communicate()
