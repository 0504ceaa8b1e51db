"""Runs the inspections that the core asks for, and the audits of responses that have ended.

An audit belongs to a response and not to a connection: it goes on when the response has been delivered and
its client has left.
"""

import asyncio
import logging
from collections.abc import Sequence

from msgspec import structs

from slipring.base.errors import ApiError
from slipring.base.periodic_tasks import cancel_and_wait
from slipring.core.checks.answer_gate import Inspection
from slipring.core.checks.policies import Check, Policy, checks_of
from slipring.core.checks.verdicts import Subject, Verdict
from slipring.core.turn.turn_checks import Audit
from slipring.safety.inspector import Inspector
from slipring.server.access.auth import Caller
from slipring.stores.responses import Responses

log = logging.getLogger("slipring")


class CallerPolicies:
    def __init__(self, inspector: Inspector, caller: Caller) -> None:
        self._inspector = inspector
        self._tenant = caller.tenant
        self._key_id = caller.key.id if caller.key is not None else None

    @property
    def checks(self) -> dict[str, Check]:
        """The checks of the server, by name."""
        return self._inspector.checks

    def policy_of(self, model: str) -> Policy:
        return self._inspector.policy_of(model=model, tenant=self._tenant, key_id=self._key_id)


async def inspect(inspector: Inspector, inspection: Inspection, tenant: str) -> list[list[Verdict]]:
    """Run all checks of an inspection at the same time; returns the verdicts about each subject.

    A check that fails has a verdict that says so, or none if it failed in an unexpected way.
    """
    subjects = inspection.subjects
    found: list[list[Verdict]] = [[] for _ in subjects]
    asked: dict[str, tuple[Check, list[int]]] = {}
    for index, subject in enumerate(subjects):
        for check in checks_of(inspection.policy, subject, inspection.when):
            asked.setdefault(check.name, (check, []))[1].append(index)

    async def run(check: Check, places: Sequence[int]) -> None:
        chosen = [_for_check(subjects[place], check) for place in places]
        try:
            verdicts = await inspector.inspect(check.name, chosen, tenant)
        except Exception:
            log.exception("the safety check %r failed unexpectedly", check.name)
            return
        for place, verdict in zip(places, verdicts, strict=False):
            found[place].append(verdict)

    await asyncio.gather(*(run(check, places) for check, places in asked.values()))
    return found


def _for_check(subject: Subject, check: Check) -> Subject:
    """The subject with as many earlier texts as the check reads."""
    if len(subject.context) <= check.context:
        return subject
    return structs.replace(subject, context=subject.context[len(subject.context) - check.context :])


class Audits:
    """The running audits of one process, and how those that have ended did so."""

    def __init__(self, inspector: Inspector, responses: Responses) -> None:
        self._inspector = inspector
        self._responses = responses
        self._tasks: set[asyncio.Task[None]] = set()
        self.passed = 0
        self.refused = 0
        self.lost = 0
        """Audits that the end of the server has ended: their responses can be continued, whatever they
        contain."""

    def start(self, audit: Audit) -> None:
        """Inspect a response that has ended, and keep the verdicts with it."""
        task = asyncio.create_task(self._run(audit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until no audit runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End all audits that still run, and log how many these were."""
        tasks = list(self._tasks)
        await cancel_and_wait(tasks)
        if lost := sum(task.cancelled() for task in tasks):
            self.lost += lost
            log.warning("%d audits had not ended when the server stopped: they refuse nothing", lost)

    async def _run(self, audit: Audit) -> None:
        must_store = audit.settle(await inspect(self._inspector, audit.inspection, audit.tenant))
        state = audit.state
        assert state.verdicts is not None
        if state.verdicts.refused_by is None:
            self.passed += 1
        else:
            self.refused += 1
            log.warning("%s was refused by the safety check %r", state.id, state.verdicts.refused_by)
        if must_store:
            try:
                await self._responses.judge(audit.tenant, state.id, state.verdicts)
            except ApiError as error:
                log.warning("the verdicts about %s could not be stored: %s", state.id, error.message)
