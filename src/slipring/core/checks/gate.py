"""The gate: holds back what an engine writes until the checks of a policy have passed it.

It stands between the engine's deltas and the output of a turn. Deltas go in; those that are released come
out, in the same order. The gate says which texts are to be inspected, and is told the verdicts. What it does
not release never becomes an event or a part of an item. It is pure, and belongs to one turn.

- Nothing is released before the input has passed.
- Text under a check that holds is released up to the last character that is in no window still to be
  inspected. So no part of a refused window was ever released, not even one that an earlier window contained.
  A call is released as a whole, after its check.
- Text under a check that follows is released at once.
- The end of the answer is released when every inspection has ended.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from slipring.core.checks.policies import Policy
from slipring.core.checks.report import Report
from slipring.core.checks.rulings import Ruling, When, checks_of, rule
from slipring.core.checks.tracks import Track
from slipring.core.checks.verdicts import Kind, Subject, Verdict
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Finished,
    Refused,
    Text,
    Thought,
    ThoughtSummary,
)

MOST_BYTES = 64 * 1024
"""Past so many bytes that wait for a verdict, the engine is not asked for more."""

_KINDS: dict[type, Kind] = {
    Text: "answer",
    Refused: "answer",
    Thought: "reasoning",
    ThoughtSummary: "reasoning",
    CallStarted: "call",
}
"""The deltas that begin or continue a stretch of an answer."""
_WITH_TEXT = (Text, Refused, Thought, ThoughtSummary, CallArguments)


class Inspection(Struct, frozen=True):
    """Texts to inspect together. The verdicts are given to ``Gate.judge``, once."""

    ticket: int
    subjects: tuple[Subject, ...]
    policy: Policy
    when: When
    """Of the policy's checks, those run that inspect a subject at this time (``checks_of``)."""


class _Held(Struct):
    """A delta that waits, and the position in the answer at its end."""

    delta: Delta
    end: int
    size_bytes: int


class _Asked(Struct, frozen=True):
    """An inspection in flight: of the input, or of what a track has asked for."""

    inspection: Inspection
    track: Track | None = None

    @property
    def holds(self) -> bool:
        """Whether no part of the answer is released before it has ended."""
        return self.track is None and self.inspection.when == "hold"


class Gate:
    """The deltas of one turn that wait, and the inspections that they wait for."""

    __slots__ = (
        "_asked",
        "_due",
        "_held",
        "_held_bytes",
        "_hold",
        "_last_ticket",
        "_most_bytes",
        "_position",
        "_stretch",
        "_tracks",
        "context",
        "policy",
        "report",
        "ruling",
    )

    def __init__(self, policy: Policy, *, most_bytes: int = MOST_BYTES) -> None:
        self.policy = policy
        self.context: tuple[str, ...] = ()
        """Texts before the answer, for checks that read them."""
        self.report = Report()
        self.ruling: Ruling | None = None
        """Why the turn must end; None while nothing is refused."""
        self._most_bytes = most_bytes
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._position = 0
        """The length of the answer so far: its characters, and one for the beginning of each call."""
        self._stretch: type | None = None
        """The type of the deltas that the current stretch of the answer consists of."""
        hold, follow = Track(policy, "hold"), Track(policy, "follow")
        self._tracks = [track for track in (hold, follow) if track.is_used]
        self._hold = hold if hold.is_used else None
        self._due: list[Inspection] = []
        self._asked: dict[int, _Asked] = {}
        self._last_ticket = 0

    @property
    def is_settled(self) -> bool:
        """Whether no inspection and no delta waits: what has been fed so far is released, or refused."""
        return not self._asked and not self._held

    @property
    def holds_input(self) -> bool:
        """Whether the input has not passed yet."""
        return bool(self._asked) and any(asked.holds for asked in self._asked.values())

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
        return self._held_bytes + sum([track.pending for track in self._tracks]) >= self._most_bytes

    def inspect_input(self, subjects: Sequence[Subject]) -> None:
        """Have a part of the input inspected. What is fed from now on waits for it."""
        for when in ("hold", "follow"):
            chosen = tuple(each for each in subjects if checks_of(self.policy, each, when))
            if chosen:
                self._ask(chosen, when)

    def take_due(self) -> list[Inspection]:
        """The inspections to begin now, each returned once."""
        due, self._due = self._due, []
        return due

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        """The engine has produced deltas; returns those that are released. The last of a job is ``Finished``.

        Once the answer is cut, only its end is released; once it is blocked, nothing.
        """
        if self.ruling is not None:
            return self._feed_refused(deltas)
        # Under checks that only follow, most deltas need not be held.
        passes = self._hold is None and not self._held and not self.holds_input
        released: list[Delta] = []
        for delta in deltas:
            size_bytes = self._inspect(delta)
            if passes and type(delta) is not Finished:
                released.append(delta)
            else:
                self._keep(delta, size_bytes)
        self._ask_tracks()
        return released + self._release() if self._held else released

    def _feed_refused(self, deltas: Iterable[Delta]) -> list[Delta]:
        for delta in deltas:
            if self.ruling is not None and self.ruling.consequence == "cut" and isinstance(delta, Finished):
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
        ruling: Ruling | None = None
        for index, subject in enumerate(inspection.subjects):
            given = verdicts[index] if index < len(verdicts) else ()
            checks = checks_of(self.policy, subject, inspection.when)
            self.report.add(subject, checks, given)
            ruling = rule(subject, checks, given)
            if ruling is not None and ruling.stops:
                break
            passed += 1
        if asked.track is not None:
            asked.track.answered(passed)
        if passed < len(inspection.subjects):
            assert ruling is not None
            self._stop(ruling)
        self._ask_tracks()
        return self._release()

    def _inspect(self, delta: Delta) -> int:
        """Let the tracks see a delta; returns its size in bytes."""
        kind = type(delta)
        if kind is not self._stretch or kind is CallStarted:
            self._begin_or_end(delta)
        if isinstance(delta, _WITH_TEXT):
            text = delta.text
            self._position += len(text)
            for track in self._tracks:
                track.grow(text, self._position)
            return _size(text)
        return len(bytes(delta.annotation)) if isinstance(delta, Annotated) else 0

    def _begin_or_end(self, delta: Delta) -> None:
        """A delta of another type than the one before may begin or end a stretch of the answer."""
        of_stretch = _KINDS.get(type(delta))
        if isinstance(delta, CallEnded | Finished) or of_stretch is not None:
            self._stretch = None
            for track in self._tracks:
                track.close()
        if of_stretch is None:
            return
        self._stretch = type(delta)
        name = delta.name if isinstance(delta, CallStarted) else None
        start = self._position
        self._position += isinstance(delta, CallStarted)
        for track in self._tracks:
            track.begin(of_stretch, name, start)
            track.grow("", self._position)

    def _keep(self, delta: Delta, size_bytes: int) -> None:
        self._held.append(_Held(delta, self._position, size_bytes))
        self._held_bytes += size_bytes

    def _ask(self, subjects: tuple[Subject, ...], when: When, track: Track | None = None) -> None:
        self._last_ticket += 1
        inspection = Inspection(self._last_ticket, subjects, self.policy, when)
        self._asked[inspection.ticket] = _Asked(inspection, track)
        self._due.append(inspection)

    def _ask_tracks(self) -> None:
        for track in self._tracks:
            if track.has_due:
                self._ask(tuple(track.ask(self.context)), track.mode, track)

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
            if frontier is not None and first.end > frontier:
                if (part := _split(first, frontier)) is None:
                    break
                taken.append(part)
            else:
                taken.append(self._held.popleft())
            self._held_bytes -= taken[-1].size_bytes
        return taken

    def _stop(self, ruling: Ruling) -> None:
        """Refuse what has not passed. After a cut, what has passed still waits for the input."""
        self.ruling = ruling
        is_cut = ruling.consequence == "cut"
        passed = self._take_passed() if is_cut else []
        end = [held for held in self._held if is_cut and isinstance(held.delta, Finished)]
        self._held = deque([*passed, *end])
        self._held_bytes = sum(held.size_bytes for held in passed)
        self._asked = {
            ticket: asked for ticket, asked in self._asked.items() if is_cut and asked.track is None
        }
        self._due = [inspection for inspection in self._due if inspection.ticket in self._asked]
        self._tracks, self._hold = [], None


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
