"""The items of one turn that its policy inspects: each of them once.

Most of a context was inspected before: by the turns of its chain, or when the client sent the same items
earlier. ``InspectedItems`` finds what was not, gives it to the turn's gate, and remembers the verdicts for
later turns.

An item that was never inspected is not let through, wherever in the input it stands: clients write their
histories themselves. What was refused before is withheld (``withheld_items``), or refused again. A policy
with the scope ``all`` also inspects what a chain contains from turns under other policies.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from slipring.core.chain.head import Head
from slipring.core.chain.state import ResponseState
from slipring.core.checks.gate import Gate
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.rulings import checks_of, rule
from slipring.core.checks.subjects import called_names, is_models, subject_of, verdict_key
from slipring.core.checks.verdicts import Side, Subject, Verdict
from slipring.core.turn.compaction import is_summary
from slipring.core.turn.withheld_items import Behind, Refusals, withheld
from slipring.protocol import wire
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.items import Item


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
        "_behind",
        "_callers",
        "_context",
        "_digests",
        "_gate",
        "_known",
        "_names",
        "_policy",
        "_tenant",
        "_waiting",
    )

    def __init__(self, gate: Gate, known: KnownVerdicts, tenant: str) -> None:
        self._gate = gate
        self._policy = gate.policy
        self._known = known
        self._tenant = tenant
        self._callers: list[Iterable[Item]] = []
        """Items with calls whose names were not read yet."""
        self._names: dict[str, str] = {}
        """The names of called tools, by ``call_id``."""
        self._waiting: dict[int, _Waiting] = {}
        """By ``id()`` of the subject, which the entry keeps alive."""
        self._context: deque[str] = deque(maxlen=max(check.context for check in self._policy.checks))
        """The last texts of the context, as many as a check reads."""
        self._digests: Mapping[int, bytes] = {}
        """Of items whose content was digested before, by ``id()``."""
        self._behind = Behind((), {})

    def withhold(self, items: tuple[Item, ...], digests: Mapping[int, bytes]) -> tuple[Item, ...]:
        """The items of a request, with placeholders for what was refused before. ``digests``: of items whose
        content was digested before, by ``id()``; the caller keeps these items alive."""
        self._digests, self._behind = digests, Behind(items, digests)
        items, refusals = withheld(items, digests, Refusals(self._policy, self._known, self._tenant))
        for refusal in refusals:
            self._gate.report.withhold(refusal.ruling.check, refusal.known.verdicts)
        return items

    def begin(self, parent: ResponseState | None, head: Head, items: tuple[Item, ...]) -> None:
        """Have the gate inspect what is new in the context of a turn.

        ``items``: those that ``withhold`` has returned, with their hosted items opened. Raises the error of a
        blocked turn if it is known already that an item is refused.
        """
        subjects = self._of_head(parent, head)
        if parent is not None:
            self._callers.append(parent.output)
            subjects += self._of_chain(parent)
        self._callers.append(items)
        new = [(index, *each) for index, item in enumerate(items) for each in _sealed_and_open((item,))]
        last = _last_of_model([item for _, item, _ in new]) if self._policy.scope == "new" else 0
        for place, (index, item, is_sealed) in enumerate(new):
            digest, behind = self._digests.get(id(item)), self._behind[index]
            subjects += self._unknown(item, digest, is_sealed, is_new=place >= last, behind=behind)
        self._inspect(subjects)

    def add_list(self, tools: list[ListedTool]) -> None:
        """Have the gate inspect a list of hosted tools that was fetched. Raises as ``begin`` does."""
        self._inspect(self._of_definitions(wire.encode(tools).decode()))

    def add(self, items: Iterable[Item], called: Iterable[Item] = (), *, is_sealed: bool = False) -> None:
        """Have the gate inspect items that were added to the context of a running turn.

        ``called``: items with the calls that they answer. ``is_sealed``: the server has made them. Raises as
        ``begin`` does.
        """
        self._callers.append(tuple(called))
        subjects: list[Subject] = []
        for item, is_inside in _sealed_and_open(items):
            subjects += self._unknown(item, None, is_sealed or is_inside, is_new=True)
        self._inspect(subjects)

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
            ruling = rule(subject, answered, known)
            is_refused = ruling is not None and ruling.stops
            # Whoever refuses an item ends the turn, and with it what other checks would say.
            if is_refused or len(answered) == len(checks):
                del self._waiting[id(subject)]
                self._remember(waiting.key, known, waiting.behind if is_refused else b"")

    def completed(self, output: Iterable[Item]) -> list[Subject]:
        """The turn has ended, and its output has passed; returns what is still to be audited."""
        for item, is_sealed in _sealed_and_open(output):
            if item.type == "mcp_list_tools":
                continue  # inspected when it was fetched
            key = _key(item, None, is_sealed)
            subject = self._subject(item, "output", is_sealed)
            if subject is None or self._known.find(self._tenant, self._policy.digest, key) is not None:
                continue
            self._waiting[id(subject)] = _Waiting(subject, key)
            passed = [check for check in self._policy.on(subject.kind) if check.mode != "audit"]
            self.judged([subject], [[Verdict(check.name, check.version, flagged=False) for check in passed]])
        subjects = [waiting.subject for waiting in self._waiting.values()]
        return [subject for subject in subjects if checks_of(self._policy, subject, "audit")]

    def _of_head(self, parent: ResponseState | None, head: Head) -> list[Subject]:
        """What is inspected of instructions and tools, unless the parent has the same."""
        if parent is not None and parent.head.digest == head.digest and self._covers(parent):
            return []
        subjects: list[Subject] = []
        tools = head.tools.raw.decode() if head.tools.callables else ""
        for text in filter(None, (head.instructions, tools)):
            subjects += self._of_definitions(text)
        return subjects

    def _of_definitions(self, text: str) -> list[Subject]:
        """What is inspected of instructions, or of definitions of tools, that no item contains."""
        key = sha256(b"definitions " + text.encode()).digest()
        return self._unless_known(Subject("input", "instructions", text), key, is_new=True)

    def _of_chain(self, parent: ResponseState) -> list[Subject]:
        """What is inspected of a chain, if that is asked for: the items of turns under other policies."""
        self._read_before(parent)
        if self._policy.scope == "new":
            return []
        subjects: list[Subject] = []
        for node in parent.chain():
            if self._covers(node):
                break
            for item, is_sealed in _sealed_and_open((*node.input, *node.output)):
                subjects += self._unknown(item, None, is_sealed, is_new=True)
        return subjects

    def _covers(self, node: ResponseState) -> bool:
        """Whether everything up to this response was inspected under the policy of this turn."""
        return node.verdicts is not None and node.verdicts.policy == self._policy.digest

    def _read_before(self, parent: ResponseState) -> None:
        """Note the last texts of a chain, as many as a check reads."""
        most = self._context.maxlen or 0
        texts: list[str] = []
        for node in parent.chain():
            if len(texts) >= most:
                break
            for item, is_sealed in reversed(list(_sealed_and_open((*node.input, *node.output)))):
                subject = self._subject(item, "input", is_sealed)
                texts += [] if subject is None else [subject.text]
        self._context.extend(reversed(texts[:most]))

    def _unknown(
        self, item: Item, digest: bytes | None, is_sealed: bool, *, is_new: bool, behind: bytes = b""
    ) -> list[Subject]:
        """The subject of an item, if nothing is known about it. ``is_new``: it is reported again if a check
        has flagged it. ``behind``: identifies what follows it in the request."""
        if item.type == "mcp_list_tools":
            listed = self._subject(item, "input", is_sealed)
            return [] if listed is None else self._of_definitions(listed.text)
        key = _key(item, digest, is_sealed)
        known = self._known.find(self._tenant, self._policy.digest, key)
        if known is not None and not known.verdicts and not self._context.maxlen:
            return []  # it need not even be decoded
        subject = self._subject(item, "input", is_sealed)
        return [] if subject is None else self._unless_known(subject, key, is_new=is_new, behind=behind)

    def _unless_known(
        self, subject: Subject, key: bytes, *, is_new: bool, behind: bytes = b""
    ) -> list[Subject]:
        subject = Subject(
            *(subject.side, subject.kind, subject.text, subject.role, subject.name), tuple(self._context)
        )
        self._context.append(subject.text)
        checks = self._policy.on(subject.kind)
        if not checks:
            return []
        known = self._known.find(self._tenant, self._policy.digest, key)
        if known is None:
            self._waiting[id(subject)] = _Waiting(subject, key, behind)
            return [subject]
        ruling = rule(subject, checks, known.verdicts) if known.verdicts else None
        is_refused = ruling is not None and ruling.consequence == "block"
        if known.verdicts and (is_new or is_refused):
            self._gate.report.add(subject, checks, known.verdicts)
        if ruling is not None and is_refused:
            self._remember(key, known.verdicts, behind)
            raise ruling.error()
        return []

    def _subject(self, item: Item, side: Side, is_sealed: bool) -> Subject | None:
        subject = subject_of(item, side, self._name_of)
        if subject is not None and is_sealed and is_summary(item):
            return Subject(side, "summary", subject.text)
        return subject

    def _name_of(self, call_id: str) -> str | None:
        """The name of the tool that was called by this id."""
        while self._callers:
            self._names.update(called_names(self._callers.pop(0)))
        return self._names.get(call_id)

    def _inspect(self, subjects: list[Subject]) -> None:
        self._gate.inspect_input(subjects)
        self._gate.context = tuple(self._context)

    def _remember(self, key: bytes, verdicts: tuple[Verdict, ...], behind: bytes = b"") -> None:
        self._known.remember(self._tenant, self._policy.digest, key, verdicts, behind)


def _key(item: Item, digest: bytes | None, is_sealed: bool) -> bytes:
    """Under what the verdicts about an item are remembered. Other checks may inspect a summary than a message
    with the same text."""
    key = verdict_key(item, digest)
    return sha256(b"summary " + key).digest() if is_sealed and is_summary(item) else key


def _last_of_model(items: list[Item]) -> int:
    """The index of the last item that a model has written; 0 if there is none."""
    return next((index for index in range(len(items) - 1, 0, -1) if is_models(items[index])), 0)


def _sealed_and_open(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """The items as a model sees them, and lists of tools, which it sees as part of the head; and whether an
    item was inside another one. What was inside a sealed one, no client can have written. An item that is
    opened because results of hosted calls stand behind it is among them itself."""
    for item in items:
        if item.opened is None or item.type == "mcp_list_tools":
            yield item, False
        else:
            yield from ((inner, inner.raw != item.raw) for inner in item.opened)
