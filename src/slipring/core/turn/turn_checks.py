"""The checks of one turn: its gate, the items that it inspects, and what their verdicts lead to."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from slipring.base.errors import ApiError
from slipring.core.chain.head import Head
from slipring.core.chain.state import ResponseState
from slipring.core.checks.answer_gate import Emission, Gate, Inspection
from slipring.core.checks.inspected_texts import list_text
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.moderation_report import Report
from slipring.core.checks.policies import Policy, checks_of, decide
from slipring.core.checks.verdicts import NodeVerdicts, Subject, Verdict
from slipring.core.generation import Delta, Finished, Job, RefusalText
from slipring.core.hosted.tools import CallOutcome
from slipring.core.turn.uninspected_items import InspectedItems
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.items import Item
from slipring.protocol.responses import ResponseModeration

REFUSAL = "The rest of this answer was withheld."
"""The text of the refusal with which an answer ends that is cut, if its policy asks for one."""


class Audit(Struct, frozen=True, eq=False):
    """What is inspected after a turn has ended, beside whatever follows it."""

    tenant: str
    state: ResponseState
    inspection: Inspection
    items: InspectedItems
    is_stored: bool

    def settle(self, verdicts: Sequence[Sequence[Verdict]]) -> bool:
        """Note the verdicts with the response; returns whether they are to be stored with it."""
        report, refused_by = Report(), None
        for index, subject in enumerate(self.inspection.subjects):
            given = verdicts[index] if index < len(verdicts) else ()
            checks = checks_of(self.inspection.policy, subject, "audit")
            report.add(subject, checks, given)
            decision = decide(subject, checks, given)
            if decision is not None and decision.consequence in ("cut", "block"):
                refused_by = refused_by or decision.check
        self.items.judged(self.inspection.subjects, verdicts)
        before = self.state.verdicts
        assert before is not None
        self.state.verdicts = before.audited(report.findings, refused_by)
        return self.is_stored and self.state.verdicts != before


class TurnChecks:
    """The gate of a turn, with what goes through it besides the engine's deltas."""

    __slots__ = (
        "_has_begun",
        "_has_lists",
        "_has_resumed",
        "_tenant",
        "gate",
        "is_held",
        "items",
        "policy",
    )

    def __init__(self, policy: Policy, known: KnownVerdicts, tenant: str) -> None:
        self._tenant = tenant
        self.policy = policy
        self.gate = Gate(policy)
        """Holds the answer back, and what is emitted besides."""
        self.items = InspectedItems(self.gate, known, tenant)
        self._has_begun = self._has_lists = self._has_resumed = False
        self.is_held = False
        """Whether the engine has begun its answer, and waits for the verdicts about the input."""

    # The input.

    def begin(
        self,
        parent: ResponseState | None,
        head: Head,
        items: tuple[Item, ...],
        definitions: Iterable[str],
        *,
        writes_json: bool,
    ) -> None:
        """Inspect what is new in the context. ``definitions``: what the model reads that neither head nor
        items contain. ``writes_json``: its answer is JSON to its reader. Raises an ``ApiError`` if something
        is known to be refused."""
        self.gate.writes_json = writes_json
        self.items.begin(parent, head, items, definitions)
        self._has_begun = True

    def add_list(self, label: str, tools: list[ListedTool], error: str | None) -> None:
        """Inspect a list of hosted tools that was fetched for the response. Raises as ``begin`` does."""
        self._has_lists = True
        self.items.add_list(list_text(label, tools, error))

    def resume(self, job: Job) -> None:
        """Inspect what the next step of a response adds to its context. Raises as ``begin`` does."""
        self._has_lists = False
        self._has_resumed = True
        self.items.resume(job)

    # What is emitted besides the answer.

    def hold_result(self, emit: Emission, call: Item, item: Item, outcome: CallOutcome) -> None:
        """Have the result of a hosted call emitted once it has passed. ``call``, ``item``: the call and its
        output as the next step reads them."""
        self.gate.hold(emit, self.items.of_result(call, item, outcome))

    def hold_message(self, emit: Emission, name: str, text: str) -> None:
        """Have something emitted once this text of a hosted tool has passed."""
        self.gate.hold(emit, [Subject("input", "tool_output", text, name=name)])

    @property
    def has_passed(self) -> bool:
        """Whether the whole input was inspected, and no check that may refuse it is still missing."""
        return self._has_begun and not self.gate.holds_input

    def holds_work(self, *, is_call: bool) -> bool:
        """Whether the engine must not get its job yet; or, with ``is_call``, no approved call may run. What
        MCP servers list, and what a further step reads, is read by no model before it has passed."""
        if self._has_lists and self.gate.holds_definitions:
            return True
        return self.gate.holds_input and (is_call or self.is_before or self._has_resumed)

    @property
    def is_before(self) -> bool:
        """Whether the engine must see nothing that has not passed."""
        return any(check.before for check in self.gate.policy.checks)

    # The output.

    @property
    def is_cut(self) -> bool:
        """Whether the answer ends where it is."""
        return self.gate.decision is not None and self.gate.decision.consequence == "cut"

    @property
    def error(self) -> ApiError | None:
        """Why the turn fails; None if no check makes it fail."""
        decision = self.gate.decision
        return decision.error() if decision is not None and decision.consequence != "cut" else None

    def begin_answer(self) -> None:
        """The engine begins its answer: it may have to wait for verdicts about the input."""
        self.is_held = self.gate.holds_input

    def stops_holding(self) -> bool:
        """Whether the engine has waited for those verdicts until now."""
        has_passed = self.is_held and not self.gate.holds_input
        self.is_held = self.is_held and not has_passed
        return has_passed

    def remember(self, inspection: Inspection, verdicts: Sequence[Sequence[Verdict]]) -> None:
        """The verdicts of an inspection: they are known to later turns."""
        self.items.judged(inspection.subjects, verdicts)

    def judge(self, inspection: Inspection, verdicts: Sequence[Sequence[Verdict]]) -> list[Delta]:
        """The verdicts of an inspection: returns the deltas that are released now."""
        self.remember(inspection, verdicts)
        return self.gate.judge(inspection.ticket, verdicts)

    def ended(self, finished: Finished, *, may_refuse: bool) -> tuple[list[Delta], Finished]:
        """How an answer ends: further deltas, and its end. ``may_refuse``: it can end with a refusal.

        The engine's position does not fit an answer that was cut: it covers what was not released. Neither
        does a stop sequence: the answer ends before it was reached.
        """
        decision = self.gate.decision
        if decision is None:
            return [], finished
        finished = structs.replace(
            finished, reason="content_filter", position=None, context=None, stop_sequence=None
        )
        if decision.ending == "refusal" and may_refuse:
            return [RefusalText(REFUSAL)], structs.replace(finished, reason="stop")
        return [], finished

    # The end.

    @property
    def moderation(self) -> ResponseModeration:
        """What the checks have found, for the response object."""
        return self.gate.report.moderation(self.gate.policy)

    @property
    def input_ms(self) -> float:
        """How long the input was inspected."""
        return self.gate.report.input_ms

    @property
    def flagged_by(self) -> tuple[str, ...]:
        """The checks that have flagged something, or had flagged before what is withheld now."""
        flagging = (finding.check for finding in self.gate.report.findings)
        return tuple(dict.fromkeys((*flagging, *self.gate.report.withheld)))

    @property
    def withheld(self) -> dict[str, int]:
        """By check: how many items of the input are withheld because of it."""
        return dict(self.gate.report.withheld)

    def verdicts(self, parent: ResponseState | None) -> NodeVerdicts:
        """What the response keeps of the verdicts about its items."""
        policy = self.gate.policy
        audits = any(check.mode == "audit" for check in policy.checks)
        # A check that gave no answer has inspected nothing.
        digest = b"" if self.gate.unanswered("input", "output") else policy.digest
        is_audited = audits or (parent is not None and parent.is_audited)
        return NodeVerdicts(digest, self.gate.report.findings, is_audited)

    def audit(self, state: ResponseState, *, is_stored: bool) -> Audit | None:
        """The response has ended: what remains to be inspected of it. What was cut is inspected again if a
        client sends it."""
        output = () if self.is_cut else state.output
        subjects = tuple(self.items.completed(output))
        if not subjects:
            return None
        inspection = Inspection(0, subjects, self.gate.policy, "audit")
        return Audit(self._tenant, state, inspection, self.items, is_stored)
