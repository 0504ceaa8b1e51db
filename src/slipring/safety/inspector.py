"""The inspector: all checks of a server, and the policy of each turn."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from msgspec import structs

from slipring.base.errors import ModelNotFound, StartupError
from slipring.config.tables import CheckEntry, PolicyEntries
from slipring.core.checks.policies import AssignedChecks, Check, Policy
from slipring.core.checks.verdicts import Subject, Verdict
from slipring.core.tenant_caches import TenantCache
from slipring.safety.source_calls import CheckStatus, RunningCheck, Source, naming

if TYPE_CHECKING:
    from slipring.safety.sources.guard import Engines


def _open_source(entry: CheckEntry, engines: "Engines") -> Source:
    # Imported for the first check: most servers have none.
    from slipring.safety.sources.catalog import open_source

    return open_source(entry, engines)


class Inspector:
    """Runs the configured checks. Without checks it does nothing, and every policy is empty."""

    def __init__(
        self,
        entries: Sequence[CheckEntry],
        policies: PolicyEntries,
        engines: "Engines",
        clock: Callable[[], float],
        *,
        cache_bytes: int,
        open_by_entry: "Callable[[CheckEntry, Engines], Source]" = _open_source,
    ) -> None:
        """Opens the sources without starting them. Raises ``StartupError``."""
        self._scope = policies.scope
        self._engines = engines
        self._assigned = AssignedChecks(
            dict(policies.keys), dict(policies.tenants), dict(policies.models), policies.default
        )
        self.cache: TenantCache[Verdict] = TenantCache(cache_bytes)
        self._running = {
            entry.name: RunningCheck(entry, open_by_entry(entry, engines), self.cache, clock)
            for entry in entries
        }
        self.checks: dict[str, Check] = {}
        """The checks by name, in the configured order. Complete once the inspector has started."""
        self._of_names: dict[tuple[str, ...], Policy] = {}

    async def start(self) -> None:
        """Start the sources. The engines have started before. Raises ``StartupError``; ``close`` is called
        then, too."""
        for name, running in self._running.items():
            with naming(running.entry):
                await running.start()
            self.checks[name] = running.check()
        try:
            models = {self._engines.find(name).name: names for name, names in self._assigned.models.items()}
        except ModelNotFound as error:
            raise StartupError(f"policies.models: {error.message}") from None
        self._assigned = structs.replace(self._assigned, models=models)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for running in self._running.values():
                stack.push_async_callback(running.close)

    def policy_of(self, *, model: str, tenant: str, key_id: str | None = None) -> Policy:
        """The policy of a turn."""
        names = self._assigned.checks_of(key_id, tenant, model)
        if names is None:
            names = tuple(self._running)
        if names not in self._of_names:
            checks = tuple(self.checks[name] for name in names)
            self._of_names[names] = Policy(checks, self._scope)
        return self._of_names[names]

    async def inspect(self, check: str, subjects: Sequence[Subject], tenant: str) -> list[Verdict]:
        """The verdicts of one check, one for each subject, within its timeout. A verdict that is ``failed``
        tells why there is no answer: nothing else is raised."""
        return await self._running[check].inspect(subjects, tenant)

    def status(self) -> list[CheckStatus]:
        """What operators see of each check."""
        return [running.status() for running in self._running.values()]
