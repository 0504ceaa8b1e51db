"""The checks of one turn: which items are still to be inspected, its gate, and what the verdicts lead to.

Most of a context was inspected before: by the turns of its chain, or when the client sent the same items
earlier. ``InspectedItems`` finds what was not, so that each item is inspected once, gives it to the turn's
gate, and remembers the verdicts for later turns, by what the checks have seen (``InspectionContext``).

An item that was never inspected is not let through, wherever in the input it stands: clients write their
histories themselves. What was refused before is withheld (``withheld_items``), or refused again. A policy
with the scope ``all`` also inspects what a chain contains from turns under other policies.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Raw, Struct, structs

from slipring.base.errors import ApiError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.checks.answer_gate import Emission, Gate, Inspection
from slipring.core.checks.inspected_texts import definition_text, is_models, list_text, result_text
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.moderation_report import Report
from slipring.core.checks.policies import Policy, checks_of, decide
from slipring.core.checks.verdicts import NodeVerdicts, Subject, Verdict
from slipring.core.generation import Delta, Finished, Job, RefusalText, Settings
from slipring.core.hosted_tools import CallOutcome
from slipring.core.turn.inspection_context import Before, InspectionContext, sealed_and_open
from slipring.core.turn.withheld_items import Behind, Refusals, withheld
from slipring.protocol.items.items import Item
from slipring.protocol.requests import TEXT
from slipring.protocol.responses import ResponseModeration
from slipring.protocol.tools.mcp_tools import ListedTool
from slipring.protocol.tools.toolset import NO_TOOLS

REFUSAL = "The rest of this answer was withheld."
"""The text of the refusal with which an answer ends that is cut, if its policy asks for one."""


class _Waiting:
    """An item some of whose verdicts are missing."""

    __slots__ = ("behind", "key", "subject", "verdicts")

    def __init__(self, subject: Subject, key: bytes, behind: bytes = b"") -> None:
        self.subject = subject
        self.key = key
        self.behind = behind
        self.verdicts: dict[str, Verdict] = {}


class InspectedItems:
    """What a turn's policy has inspected, and what it has still to inspect."""

    __slots__ = (
        "_after_input",
        "_after_step",
        "_before_input",
        "_behind",
        "_context",
        "_digests",
        "_gate",
        "_known",
        "_policy",
        "_tenant",
        "_waiting",
        "_withheld",
    )

    def __init__(self, gate: Gate, known: KnownVerdicts, tenant: str) -> None:
        self._gate = gate
        self._policy = gate.policy
        self._known = known
        self._tenant = tenant
        self._waiting: dict[int, _Waiting] = {}
        """By ``id()`` of the subject, which the entry keeps alive."""
        self._context = InspectionContext(self._policy)
        self._after_step: Before | None = None
        """What stands before the input of the next step, once one has ended."""
        self._before_input = self._after_input = self._context.before
        self._digests: Mapping[int, bytes] = {}
        """Of items whose content was digested before, by ``id()``."""
        self._behind = Behind((), {})
        self._withheld: frozenset[int] = frozenset()
        """Indexes of the items for which placeholders stand."""

    def withhold(
        self, parent: ResponseState | None, items: tuple[Item, ...], digests: Mapping[int, bytes]
    ) -> tuple[Item, ...]:
        """The items of a request, with placeholders for what was refused before. ``digests``: of items whose
        content was digested before, by ``id()``; the caller keeps these items alive."""
        self._digests, self._behind = digests, Behind(items, digests)
        context = InspectionContext(self._policy)
        if parent is not None:
            context.follow(parent)
        refusals = Refusals(self._policy, self._known, self._tenant)
        items, why = withheld(items, digests, refusals, context)
        for refusal in why.values():
            self._gate.report.withhold(refusal.decision.check, refusal.known.verdicts)
        self._withheld = frozenset(why)
        return items

    def begin(
        self,
        parent: ResponseState | None,
        head: Head,
        items: tuple[Item, ...],
        definitions: Iterable[str] = (),
    ) -> None:
        """Have the gate inspect what is new in the context of a turn.

        ``items``: those that ``withhold`` has returned, with their hosted items opened. ``definitions``: what
        the model reads that neither head nor items contain. Raises the error of a blocked turn if it is known
        already that an item is refused.
        """
        subjects = self._of_head(parent, head)
        for text in definitions:
            subjects += self._of_definitions(text)
        if parent is not None:
            subjects += self._of_chain(parent)
            self._context.follow(parent)
        self._before_input = self._context.before
        self._context.call(items)
        new = [(index, *each) for index, item in enumerate(items) for each in sealed_and_open((item,))]
        last = _last_of_model([item for _, item, _ in new]) if self._policy.scope == "new" else 0
        for place, (index, item, is_sealed) in enumerate(new):
            digest, behind = self._digests.get(id(item)), self._behind[index]
            if index in self._withheld:
                self._pass(item, is_sealed)
            else:
                subjects += self._unknown(item, digest, is_sealed, is_new=place >= last, behind=behind)
        self._after_input = self._context.before
        self._inspect(subjects)

    def add_list(self, text: str) -> None:
        """Have the gate inspect a list of hosted tools that was fetched. Raises as ``begin`` does."""
        self._inspect(self._of_definitions(text))

    def add(self, items: Iterable[Item], *, is_sealed: bool = False) -> None:
        """Have the gate inspect items that were added to the context of a running turn. ``is_sealed``: the
        server has made them. Raises as ``begin`` does."""
        subjects: list[Subject] = []
        for item, is_inside in sealed_and_open(items):
            subjects += self._unknown(item, None, is_sealed or is_inside, is_new=True)
        self._inspect(subjects)

    def append(self, items: Iterable[Item], called: Iterable[Item]) -> None:
        """Have the gate inspect items that will be input of the next step of a response, which reads them
        behind what ``resume`` says. ``called``: items with the calls that they answer. Raises as ``begin``
        does."""
        self._context.call(tuple(called))
        before = self._context.before
        self.add(items)
        self._context.go_to(before)

    def of_result(self, call: Item, item: Item, outcome: CallOutcome) -> list[Subject]:
        """What is inspected of the result of a hosted call: the next step reads both as these items."""
        if not (text := result_text(outcome.output, outcome.error)):
            return []
        self._context.call((call,))
        before = self._context.texts
        _, key = self._context.read(item, "input", is_sealed=False)
        subject = Subject("input", "tool_output", text, name=self._context.name_of(item), context=before)
        self._waiting[id(subject)] = _Waiting(subject, key)
        return [subject]

    @property
    def reads_context(self) -> bool:
        """Whether any check reads the texts before another one."""
        return self._context.is_read

    def end_step(self, output: Iterable[Item]) -> None:
        """A step has ended with this output. What the next one reads stands behind it."""
        self._context.pass_over(output)
        self._after_step = self._context.before

    def resume(self, job: Job) -> None:
        """Have the gate inspect the input of the next step of a response. Raises as ``begin`` does."""
        if self._after_step is not None:
            self._context.go_to(self._after_step)
            self.add(job.input)
            return
        # No step has ended: results of approved calls have joined the input, which follows what it did.
        self._context.go_to(self._before_input)
        self.add(job.input)
        self._after_input = self._context.before

    def judged(self, subjects: Sequence[Subject], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Remember the verdicts about items. One that failed is not remembered: its item is inspected again
        when it is sent again."""
        for subject, given in zip(subjects, verdicts, strict=False):
            waiting = self._waiting.get(id(subject))
            if waiting is None:
                continue
            waiting.verdicts.update((each.check, each) for each in given if each.failed is None)
            known = tuple(waiting.verdicts.values())
            checks = self._policy.on(subject.kind)
            answered = [check for check in checks if check.name in waiting.verdicts]
            decision = decide(subject, answered, known)
            is_refused = decision is not None and decision.stops
            # A check that refuses an item ends the turn: the verdicts of the other checks no longer matter.
            if is_refused or len(answered) == len(checks):
                del self._waiting[id(subject)]
                self._remember(waiting.key, known, waiting.behind if is_refused else b"")

    def completed(self, output: Iterable[Item]) -> list[Subject]:
        """The turn has ended, and its output has passed; returns what is still to be audited."""
        self._context.go_to(self._after_input)
        unanswered = self._gate.unanswered()
        for item, is_sealed in sealed_and_open(output):
            if item.type == "mcp_list_tools":
                continue  # inspected when it was fetched
            subject, key = self._context.read(item, "output", is_sealed=is_sealed)
            if subject is None or self._known.find(self._tenant, self._policy.digest, key) is not None:
                continue
            self._waiting[id(subject)] = _Waiting(subject, key)
            passed = [
                Verdict(check.name, check.version, flagged=False)
                for check in self._policy.on(subject.kind)
                if check.mode != "audit" and check.name not in unanswered
            ]
            self.judged([subject], [passed])
        subjects = [waiting.subject for waiting in self._waiting.values()]
        return [subject for subject in subjects if checks_of(self._policy, subject, "audit")]

    def _of_head(self, parent: ResponseState | None, head: Head) -> list[Subject]:
        """What is inspected of instructions and tools, unless the parent has the same."""
        if parent is not None and parent.head.digest == head.digest and self._covers(parent):
            return []
        subjects: list[Subject] = []
        tools = definition_text(head.tools.raw) if head.tools.raw != NO_TOOLS.raw else ""
        for text in filter(None, (head.instructions, tools)):
            subjects += self._of_definitions(text)
        return subjects

    def _of_definitions(self, text: str) -> list[Subject]:
        """What is inspected of instructions, or of definitions of tools, that no item contains."""
        key = sha256(b"definitions " + text.encode()).digest()
        return self._unless_known(Subject("input", "instructions", text), key, is_new=True)

    def _of_chain(self, parent: ResponseState) -> list[Subject]:
        """What is inspected of a chain, if that is asked for: the items of turns under other policies."""
        if self._policy.scope == "new":
            return []
        uncovered: list[ResponseState] = []
        covered: ResponseState | None = None
        for node in parent.chain():
            if self._covers(node):
                covered = node
                break
            uncovered.append(node)
        if covered is not None and uncovered:
            self._context.follow(covered)
        subjects: list[Subject] = []
        for node in reversed(uncovered):
            items = (*node.input, *node.output)
            self._context.call(items)
            for item, is_sealed in sealed_and_open(items):
                subjects += self._unknown(item, None, is_sealed, is_new=True)
        return subjects

    def _covers(self, node: ResponseState) -> bool:
        """Whether everything up to this response was inspected under the policy of this turn."""
        return node.verdicts is not None and node.verdicts.policy == self._policy.digest

    def _unknown(
        self, item: Item, digest: bytes | None, is_sealed: bool, *, is_new: bool, behind: bytes = b""
    ) -> list[Subject]:
        """The subject of an item, if nothing is known about it. ``is_new``: it is reported again if a check
        has flagged it. ``behind``: identifies what follows it in the request."""
        if item.type == "mcp_list_tools":
            listed, _ = self._context.read(item, "input", is_sealed=is_sealed)
            return [] if listed is None else self._of_definitions(listed.text)
        if not self._context.is_read:
            key = self._context.key(item, digest=digest, is_sealed=is_sealed)
            known = self._known.find(self._tenant, self._policy.digest, key)
            if known is not None and not known.verdicts:
                return []  # it need not even be decoded
        subject, key = self._context.read(item, "input", digest=digest, is_sealed=is_sealed)
        return [] if subject is None else self._unless_known(subject, key, is_new=is_new, behind=behind)

    def _unless_known(
        self, subject: Subject, key: bytes, *, is_new: bool, behind: bytes = b""
    ) -> list[Subject]:
        checks = self._policy.on(subject.kind)
        if not checks:
            return []
        known = self._known.find(self._tenant, self._policy.digest, key)
        if known is None:
            self._waiting[id(subject)] = _Waiting(subject, key, behind)
            return [subject]
        decision = decide(subject, checks, known.verdicts) if known.verdicts else None
        is_refused = decision is not None and decision.consequence == "block"
        if known.verdicts and (is_new or is_refused):
            self._gate.report.add(subject, checks, known.verdicts)
        if decision is not None and is_refused:
            self._remember(key, known.verdicts, behind)
            raise decision.error()
        return []

    def _pass(self, item: Item, is_sealed: bool) -> None:
        """A placeholder need not be inspected."""
        _, key = self._context.read(item, "input", is_sealed=is_sealed)
        self._remember(key, ())

    def _inspect(self, subjects: list[Subject]) -> None:
        self._gate.inspect_input(subjects)
        self._gate.context = self._context.texts

    def _remember(self, key: bytes, verdicts: tuple[Verdict, ...], behind: bytes = b"") -> None:
        self._known.remember(self._tenant, self._policy.digest, key, verdicts, behind)


def _last_of_model(items: list[Item]) -> int:
    """The index of the last item that a model has written; 0 if there is none."""
    return next((index for index in range(len(items) - 1, 0, -1) if is_models(items[index])), 0)


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
        settings: Settings,
        choice: Raw,
    ) -> None:
        """Inspect what is new in the context. ``choice``: the ``tool_choice`` of the response. Raises an
        ``ApiError`` if something is known to be refused."""
        self.gate.writes_json = settings.format.kind != TEXT.kind
        self.items.begin(parent, head, items, _definitions_in(settings, choice))
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
        digest = b"" if self.gate.unanswered("input") else policy.digest
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


def _definitions_in(settings: Settings, choice: Raw) -> list[str]:
    """Texts of a request that neither its head nor its items contain: what the model reads of them, and stop
    sequences, which the response repeats."""
    texts = [*settings.stop]
    if settings.format.kind == "json_schema":
        texts.append(definition_text(settings.format.echo))
    if bytes(choice).startswith(b"{"):
        texts.append(definition_text(choice))
    return texts
