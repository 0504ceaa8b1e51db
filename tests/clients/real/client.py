"""A client under test: its packages and its checks, each over one transport."""

import tempfile
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.real.installing import CannotInstall, Workshop
from tests.clients.real.stage import Stage

_Run = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    transport: str
    what: str
    run: _Run


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check."""

    check: Check
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure


@dataclass
class Report:
    """The outcomes of one client."""

    title: str
    version: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    skipped: str = ""

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.passed]


class Client:
    """A client, by its name in ``versions.toml``. ``version`` is for one that is not installed from there."""

    def __init__(self, name: str, title: str, *, version: Callable[[], str] | None = None) -> None:
        self.name = name
        self.title = title
        self.checks: list[Check] = []
        self._version = version

    def check(self, transport: str, what: str) -> Callable[[_Run], _Run]:
        """Register a function as one of this client's checks."""

        def add(run: _Run) -> _Run:
            self.checks.append(Check(transport, what, run))
            return run

        return add

    def prepare(self, workshop: Workshop) -> str:
        """Install the client; return its version."""
        if self._version:
            return self._version()
        workshop.install(self.name)
        return workshop.version(self.name)

    async def examine(self, workshop: Workshop, say: Callable[[str], None]) -> Report:
        report = Report(self.title)
        say(f"{self.title}: setting up …")
        try:
            report.version = self.prepare(workshop)
        except CannotInstall as reason:
            report.skipped = str(reason)
            say(f"{self.title}: skipped: {reason}")
            return report
        for check in self.checks:
            outcome = Outcome(check, await _attempt(check, workshop))
            report.outcomes.append(outcome)
            say(f"{self.title} {check.transport}: {check.what}: {'ok' if outcome.passed else 'FAILED'}")
        return report


async def _attempt(check: Check, workshop: Workshop) -> str:
    """Run a check; return the reason why it failed, or an empty text."""
    with tempfile.TemporaryDirectory(prefix="slipring-client-") as directory:
        try:
            await check.run(Stage(workshop, Path(directory)))
        except CannotInstall as reason:
            return f"what it needs cannot be installed: {reason}"
        except Exception:  # any failure: the next checks must run and the table must be printed
            return traceback.format_exc()
    return ""
