"""Holds back what an engine writes until the checks of a policy have passed it, knows what each mode of
checks has inspected, and releases the rest.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from slipring.core.checks.inspected_texts import (
    UPSTREAM_KINDS,
    GrowingJson,
    as_read,
    call_text,
    texts_in,
    upstream_subjects,
)
from slipring.core.checks.moderation_report import Report
from slipring.core.checks.policies import KINDS_OF, Decision, Mode, Policy, checks_of, decide
from slipring.core.checks.text_windows import OVERLAP, Window, Windows
from slipring.core.checks.verdicts import Kind, Side, Subject, Verdict
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Finished,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.protocol import wire
from slipring.protocol.items.items import Item


class Beginning(Struct, frozen=True):
    """How a stretch of an answer begins."""

    kind: Kind
    start: int
    """Its position in the answer."""
    is_json: bool = False
    """Whether its reader takes it as JSON."""
    name: str | None = None
    """Of the tool that is called."""
    title: str = ""
    """What is inspected of a call besides its text."""


class _Stretch:
    """A part of an answer. Positions count from the start of the answer, as it was written."""

    __slots__ = ("_json", "_start", "begun", "end", "is_closed", "is_covered", "kind", "settled", "windows")

    def __init__(self, begun: Beginning, overlap: int) -> None:
        self.begun = begun
        self.kind = begun.kind
        self._start = self.end = begun.start
        self._json = GrowingJson() if begun.is_json and begun.kind != "call" else None
        """Reads what is inspected before it is complete."""
        self.windows = Windows(overlap)
        self.settled = begun.start
        """What lies before has passed, and is in no window that is still to be inspected."""
        self.is_closed = False
        self.is_covered = False
        """Whether all of it was given to an inspection, and there will not be more."""

    def grow(self, text: str, end: int) -> None:
        self.end = end
        self.windows.add(text if self._json is None else self._json.add(text))

    @property
    def is_settled(self) -> bool:
        return self.is_covered and self.settled == self.end

    @property
    def is_due(self) -> bool:
        """Whether ``cut`` would find something."""
        if self.is_closed:
            return not self.is_covered
        return self.kind != "call" and self.windows.is_due

    def close(self) -> None:
        if self._json is not None:
            self.windows.add(self._json.close())
        self.is_closed = True
        self.is_covered = self.kind != "call" and not self.windows.pending

    def cut(self) -> Window | None:
        """What to inspect next, if there is enough of it."""
        if not self.is_due:
            return None
        window = self.windows.cut(is_last=self.is_closed)
        self.is_covered = self.is_closed
        # The name of a call is inspected even if it has no arguments.
        return Window("", 0) if window is None and self.is_closed else window

    def inspected(self, window: Window) -> str:
        if self.kind != "call":
            return window.text
        text = as_read(window.text) if self.begun.is_json else window.text
        return "\n".join(filter(None, (self.begun.title, text)))

    def settled_by(self, window: Window) -> int:
        """The position up to which the stretch is settled once this window has passed."""
        if self.is_covered:
            return self.end
        settled = window.settled if self._json is None else self._json.written_before(window.settled)
        return self._start + settled


class _OpenWindow(Struct, frozen=True):
    """A window in flight."""

    stretch: _Stretch
    window: Window


class InspectedAnswer:
    """The inspections of one answer by the checks of one mode."""

    __slots__ = ("_asked", "_kinds", "_open", "_overlap", "_stretches", "has_due", "mode")

    def __init__(self, policy: Policy, mode: Mode) -> None:
        self.mode = mode
        checks = {
            kind: [each for each in policy.on(kind) if each.mode == mode] for kind in KINDS_OF["output"]
        }
        self._kinds = frozenset(kind for kind, of_kind in checks.items() if of_kind)
        longest = (check.longest_match for of_kind in checks.values() for check in of_kind)
        self._overlap = max([OVERLAP, *longest])
        self._stretches: deque[_Stretch] = deque()
        """Those that are not settled, in order."""
        self._open: _Stretch | None = None
        self._asked: list[_OpenWindow] = []
        self.has_due = False
        """Whether ``ask`` would find something."""

    @property
    def is_used(self) -> bool:
        """Whether a check has this mode."""
        return bool(self._kinds)

    @property
    def frontier(self) -> int | None:
        """Everything before this position has passed; None: everything has."""
        return self._stretches[0].settled if self._stretches else None

    @property
    def pending(self) -> int:
        """Characters that were given to no inspection."""
        return sum([stretch.windows.pending for stretch in self._stretches])

    def begin(self, begun: Beginning) -> None:
        if begun.kind in self._kinds:
            self._open = _Stretch(begun, self._overlap)
            self._stretches.append(self._open)

    def grow(self, text: str, end: int) -> None:
        """The open stretch has grown up to this position."""
        # Hot path: runs once per token of an answer that is inspected.
        stretch = self._open
        if stretch is not None:
            stretch.grow(text, end)
            if stretch.windows.is_due and not self.has_due:
                self._look()

    def close(self) -> None:
        """The open stretch has ended."""
        stretch, self._open = self._open, None
        if stretch is None:
            return
        stretch.close()
        if stretch.is_covered and not any(each.stretch is stretch for each in self._asked):
            stretch.settled = stretch.end
        self._drop_settled()
        self._look()

    def ask(self, context: tuple[str, ...]) -> list[Subject]:
        """What to inspect now, if ``has_due`` says that there is something. ``context``: earlier texts."""
        self.has_due = False
        subjects = []
        for stretch in self._stretches:
            if (window := stretch.cut()) is not None:
                self._asked.append(_OpenWindow(stretch, window))
                role, name = "assistant" if stretch.kind == "answer" else None, stretch.begun.name
                text = stretch.inspected(window)
                subjects.append(Subject("output", stretch.kind, text, role, name, context))
        return subjects

    def answered(self, passed: int) -> None:
        """The inspection in flight has ended, and the first ``passed`` of its subjects have passed."""
        asked, self._asked = self._asked, []
        for each in asked[:passed]:
            each.stretch.settled = each.stretch.settled_by(each.window)
        self._drop_settled()
        self._look()

    def _look(self) -> None:
        """Find out whether there is something to inspect."""
        self.has_due = not self._asked and any(stretch.is_due for stretch in self._stretches)

    def _drop_settled(self) -> None:
        while self._stretches and self._stretches[0].is_settled:
            self._stretches.popleft()


MOST_BYTES = 64 * 1024
"""While more bytes than this wait for a verdict, the driver does not pull the engine."""

_KINDS: dict[type, Kind] = {
    Text: "answer",
    RefusalText: "answer",
    Thought: "reasoning",
    ThoughtSummary: "reasoning",
    CallStarted: "call",
}
"""The deltas that begin or continue a stretch of an answer."""
_WITH_TEXT = (Text, RefusalText, Thought, ThoughtSummary, CallArguments)
_WHOLE = frozenset({Annotated, UpstreamItemStarted, UpstreamItemEvent, UpstreamItemEnded, Finished})
"""The deltas that may begin or end something that is inspected as a whole."""
Emission = Callable[[], None]


class Inspection(Struct, frozen=True):
    """Texts to inspect together. The verdicts are given to ``Gate.judge``, once."""

    ticket: int
    subjects: tuple[Subject, ...]
    policy: Policy
    when: Mode
    """Of the policy's checks, those run that inspect a subject at this time (``checks_of``)."""


class _Owed(Struct, eq=False):
    """The verdicts about something that is inspected as a whole."""

    is_open: bool = True
    """Whether they are missing."""


class _Held(Struct):
    """A delta that waits, and the position in the answer at its end."""

    delta: Delta
    end: int
    size_bytes: int
    owed: _Owed | None = None
    """What it waits for besides."""


class _Emission(Struct, frozen=True, eq=False):
    """Something that is emitted once its own texts have passed, and the input."""

    emit: Emission
    owed: _Owed | None


class _UpstreamItem(Struct, eq=False):
    """An item that the engine's server has begun to make."""

    item: Item
    owed: _Owed
    streamed: list[str] = []
    """The pieces of its text."""
    event_texts: list[str] = []
    """Other texts of events about it."""

    def subjects(self, ended: Item | None) -> list[Subject]:
        """What is inspected of it. ``ended``: the whole item; None if it was broken off."""
        forms = [self.item] if ended is None else [ended, self.item]
        return upstream_subjects(forms, ["".join(self.streamed), *self.event_texts])

    def take(self, fields: dict[str, object]) -> int:
        """Note the texts of an event about it; returns their length."""
        raw = wire.encode(fields)
        piece = fields.get("delta")
        if isinstance(piece, str):
            self.streamed.append(piece)
        else:
            self.event_texts += texts_in(raw)
        return len(raw)


class _OpenInspection(Struct, frozen=True):
    """An inspection in flight: of the input, of a part of the answer, or of something whole."""

    inspection: Inspection
    answer: InspectedAnswer | None = None
    owed: _Owed | None = None
    is_of_answer: bool = False
    """Whether the answer contains it."""

    @property
    def holds(self) -> bool:
        """Whether no part of the answer is released before it has ended."""
        return self.answer is None and self.owed is None and self.inspection.when == "hold"


class Gate:
    """The deltas of one turn that wait, and the inspections that they wait for."""

    def __init__(self, policy: Policy, *, most_bytes: int = MOST_BYTES) -> None:
        self.policy = policy
        self.context: tuple[str, ...] = ()
        """Texts before the answer, for checks that read them."""
        self.report = Report()
        self.decision: Decision | None = None
        """Why the turn must end; None while nothing is refused."""
        self.writes_json = False
        """Whether the text of the answer is JSON to its reader."""
        self._most_bytes = most_bytes
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._position = 0
        """The length of the answer so far: its characters, and one for the beginning of each call."""
        self._stretch: type | None = None
        """The type of the deltas that the current stretch of the answer consists of."""
        hold, follow = InspectedAnswer(policy, "hold"), InspectedAnswer(policy, "follow")
        self._answers = [answer for answer in (hold, follow) if answer.is_used]
        self._hold = hold if hold.is_used else None
        self._emissions: list[_Emission] = []
        self._upstream: dict[int | str, _UpstreamItem] = {}
        """Items of the engine's server that have begun and not ended."""
        kinds = (Subject(*each) for each in UPSTREAM_KINDS)
        self._holds_items = any(checks_of(policy, each, "hold") for each in kinds)
        """Whether such items may have to wait."""
        self._due: list[Inspection] = []
        self._asked: dict[int, _OpenInspection] = {}
        self._last_ticket = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits: what has been fed so far is released, or refused."""
        return not self._asked and not self._held and not self._emissions

    @property
    def holds_input(self) -> bool:
        """Whether the input has not passed yet."""
        return bool(self._asked) and any(asked.holds for asked in self._asked.values())

    @property
    def holds_definitions(self) -> bool:
        """Whether instructions, or definitions of tools or formats, have not passed yet."""
        held = (asked.inspection for asked in self._asked.values() if asked.holds)
        return any(subject.kind == "instructions" for each in held for subject in each.subjects)

    @property
    def has_due(self) -> bool:
        """Whether inspections are to begin."""
        return bool(self._due)

    @property
    def is_full(self) -> bool:
        """Whether the engine should wait until a verdict arrives. A call that is not complete has nothing to
        wait for: the output of its turn is as large as it is."""
        if not self._asked:
            return False
        return self._held_bytes + sum([answer.pending for answer in self._answers]) >= self._most_bytes

    def unanswered(self, *others: Side) -> set[str]:
        """The checks that gave no answer about something in the answer, or on one of the other sides, or have
        not given it yet."""
        sides: tuple[Side, ...] = ("output", *others)
        missing = self.report.unanswered(*sides)
        for inspection in [asked.inspection for asked in self._asked.values()]:
            for subject in inspection.subjects:
                if subject.side in sides:
                    missing.update(check.name for check in checks_of(self.policy, subject, inspection.when))
        # An answer that is broken off ends within a window.
        modes = {answer.mode for answer in self._answers if answer.frontier is not None}
        missing.update(check.name for check in self.policy.checks if check.mode in modes)
        return missing

    def inspect_input(self, subjects: Sequence[Subject]) -> None:
        """Have a part of the input inspected. What is fed from now on waits for it."""
        for when in ("hold", "follow"):
            chosen = tuple(each for each in subjects if checks_of(self.policy, each, when))
            if chosen:
                self._ask(chosen, when)

    def hold(self, emit: Emission, subjects: Sequence[Subject] = ()) -> None:
        """Have texts inspected. ``take_emissions`` returns ``emit`` once they have passed, and the input. The
        answer does not wait for them, but its end does."""
        self._emissions.append(_Emission(emit, self._inspect_whole(subjects, is_of_answer=False)))

    def take_emissions(self) -> list[Emission]:
        """What may be emitted now, each returned once. It comes before the deltas that are released now."""
        if not self._emissions or self.holds_input:
            return []
        ready = [each for each in self._emissions if not _is_open(each.owed)]
        self._emissions = [each for each in self._emissions if _is_open(each.owed)]
        return [each.emit for each in ready]

    def take_due(self) -> list[Inspection]:
        """The inspections to begin now, each returned once."""
        due, self._due = self._due, []
        return due

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        """The engine has produced deltas; returns those that are released. The last of a job is ``Finished``.

        Once the answer is cut, only its end is released; once it is blocked, nothing.
        """
        if self.decision is not None:
            return self._feed_refused(deltas)
        # Under checks that only follow, most deltas need not be held.
        passes = self._hold is None and not self._held and not self.holds_input
        released: list[Delta] = []
        for delta in deltas:
            size_bytes, owed = self._inspect(delta), None
            if type(delta) in _WHOLE:
                more_bytes, owed = self._take_whole(delta)
                size_bytes += more_bytes
            if passes and not _is_open(owed) and not self._held and type(delta) is not Finished:
                released.append(delta)
            else:
                self._keep(delta, size_bytes, owed)
        self._ask_next()
        return released + self._release() if self._held else released

    def _feed_refused(self, deltas: Iterable[Delta]) -> list[Delta]:
        for delta in deltas:
            if (
                self.decision is not None
                and self.decision.consequence == "cut"
                and isinstance(delta, Finished)
            ):
                self._keep(delta, 0)
        return self._release()

    def judge(self, ticket: int, verdicts: Sequence[Sequence[Verdict]]) -> list[Delta]:
        """The verdicts about each subject of an inspection; returns the deltas that are released.

        A second answer to the same ticket has no effect, and neither has one that comes after the end.
        """
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return []
        inspection, passed = asked.inspection, 0
        decision: Decision | None = None
        for index, subject in enumerate(inspection.subjects):
            given = verdicts[index] if index < len(verdicts) else ()
            checks = checks_of(self.policy, subject, inspection.when)
            self.report.add(subject, checks, given)
            decision = decide(subject, checks, given)
            if decision is not None and decision.stops:
                break
            passed += 1
        if asked.answer is not None:
            asked.answer.answered(passed)
        if asked.owed is not None:
            asked.owed.is_open = passed < len(inspection.subjects)
        if passed < len(inspection.subjects):
            assert decision is not None
            self._stop(decision)
        self._ask_next()
        return self._release()

    def _inspect(self, delta: Delta) -> int:
        """Show a delta to the checks; returns its size in bytes."""
        kind = type(delta)
        if kind is not self._stretch or kind is CallStarted:
            self._begin_or_end(delta)
        if isinstance(delta, _WITH_TEXT):
            text = delta.text
            self._position += len(text)
            for answer in self._answers:
                answer.grow(text, self._position)
            return _size(text)
        return 0

    def _take_whole(self, delta: Delta) -> tuple[int, _Owed | None]:
        """Inspect what is complete with this delta; returns its size in bytes, and what it waits for."""
        if isinstance(delta, Annotated):
            raw = bytes(delta.annotation)
            text = "\n".join(texts_in(raw))
            subjects = [Subject("output", "answer", text, "assistant", None, self.context)] if text else []
            return len(raw), self._inspect_whole(subjects, is_of_answer=True)
        if isinstance(delta, UpstreamItemStarted):
            begun = self._upstream[delta.key] = _UpstreamItem(delta.item, _Owed(self._holds_items))
            return len(delta.item.raw), begun.owed
        if isinstance(delta, UpstreamItemEvent):
            return self._upstream[delta.key].take(delta.fields), None
        if isinstance(delta, UpstreamItemEnded):
            self._end_upstream(self._upstream.pop(delta.key), delta.item)
            return len(delta.item.raw), None
        while self._upstream:
            self._end_upstream(self._upstream.popitem()[1], None)
        return 0, None

    def _end_upstream(self, begun: _UpstreamItem, ended: Item | None) -> None:
        """Inspect an item of the engine's server: nothing of it was released before."""
        self._inspect_whole(begun.subjects(ended), is_of_answer=True, owed=begun.owed)

    def _inspect_whole(
        self, subjects: Sequence[Subject], *, is_of_answer: bool, owed: _Owed | None = None
    ) -> _Owed | None:
        """Have texts inspected together; returns what waits for the verdicts."""
        owed = _Owed() if owed is None else owed
        owed.is_open = False
        for when in ("hold", "follow"):
            chosen = tuple(each for each in subjects if checks_of(self.policy, each, when))
            if chosen:
                owed.is_open = owed.is_open or when == "hold"
                self._ask(chosen, when, owed=owed if when == "hold" else None, is_of_answer=is_of_answer)
        return owed

    def _begin_or_end(self, delta: Delta) -> None:
        """A delta of another type than the one before may begin or end a stretch of the answer."""
        of_stretch = _KINDS.get(type(delta))
        if isinstance(delta, CallEnded | Finished) or of_stretch is not None:
            self._stretch = None
            for answer in self._answers:
                answer.close()
        if of_stretch is None:
            return
        self._stretch = type(delta)
        if isinstance(delta, CallStarted):
            title = call_text(delta.namespace, delta.name, "")
            begun = Beginning(of_stretch, self._position, delta.kind != "custom", delta.name, title)
            self._position += 1
        else:
            begun = Beginning(of_stretch, self._position, self.writes_json and isinstance(delta, Text))
        for answer in self._answers:
            answer.begin(begun)
            answer.grow("", self._position)

    def _keep(self, delta: Delta, size_bytes: int, owed: _Owed | None = None) -> None:
        self._held.append(_Held(delta, self._position, size_bytes, owed))
        self._held_bytes += size_bytes

    def _ask(
        self,
        subjects: tuple[Subject, ...],
        when: Mode,
        answer: InspectedAnswer | None = None,
        owed: _Owed | None = None,
        *,
        is_of_answer: bool = False,
    ) -> None:
        self._last_ticket += 1
        inspection = Inspection(self._last_ticket, subjects, self.policy, when)
        self._asked[inspection.ticket] = _OpenInspection(inspection, answer, owed, is_of_answer)
        self._due.append(inspection)

    def _ask_next(self) -> None:
        for answer in self._answers:
            if answer.has_due:
                self._ask(tuple(answer.ask(self.context)), answer.mode, answer, is_of_answer=True)

    def _release(self) -> list[Delta]:
        """Take the deltas that may be released from the queue."""
        if self.holds_input:
            return []
        released = [held.delta for held in self._take_passed()]
        if self._held and not self._asked and isinstance(self._held[0].delta, Finished):
            released.append(self._held.popleft().delta)
        return released

    def _take_passed(self) -> list[_Held]:
        """Take what has passed from the queue, without the end of the answer."""
        frontier = self._hold.frontier if self._hold is not None else None
        taken: list[_Held] = []
        while self._held and not isinstance((first := self._held[0]).delta, Finished):
            if _is_open(first.owed):
                break
            if frontier is not None and first.end > frontier:
                if (part := _split(first, frontier)) is None:
                    break
                taken.append(part)
            else:
                taken.append(self._held.popleft())
            self._held_bytes -= taken[-1].size_bytes
        return taken

    def _stop(self, decision: Decision) -> None:
        """Refuse what has not passed. After a cut, what has passed still waits for the input."""
        self.decision = decision
        is_cut = decision.consequence == "cut"
        passed = self._take_passed() if is_cut else []
        end = [held for held in self._held if is_cut and isinstance(held.delta, Finished)]
        self._held = deque([*passed, *end])
        self._held_bytes = sum(held.size_bytes for held in passed)
        self._emissions = self._emissions if is_cut else []
        self._upstream = {}
        self._asked = {
            ticket: asked for ticket, asked in self._asked.items() if is_cut and not asked.is_of_answer
        }
        self._due = [inspection for inspection in self._due if inspection.ticket in self._asked]
        self._answers, self._hold = [], None


def _is_open(owed: _Owed | None) -> bool:
    return owed is not None and owed.is_open


def _split(held: _Held, frontier: int) -> _Held | None:
    """Take the part of a delta that lies before the frontier. Logprobs belong to whole deltas, and are not
    split."""
    delta = held.delta
    if not isinstance(delta, _WITH_TEXT) or (isinstance(delta, Text) and delta.logprobs):
        return None
    length = frontier - (held.end - len(delta.text))
    if length <= 0:
        return None
    before, after = delta.text[:length], delta.text[length:]
    part = _Held(structs.replace(delta, text=before), frontier, _size(before))
    held.delta, held.size_bytes = structs.replace(delta, text=after), _size(after)
    return part


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
