"""The source of a check, and how it is called: in batches, within a time, not while it fails.

A ``Source`` is asked about texts and answers with scores. A ``RunningCheck`` calls the source of one check:
it collects texts into batches, enforces timeouts, stops calling a source that fails (``Breaker``), and
remembers verdicts.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, structs

from slipring.base.errors import StartupError
from slipring.config.tables import ANY_CATEGORY, CheckEntry
from slipring.core.checks.policies import Check
from slipring.core.checks.verdicts import Subject, Verdict
from slipring.core.tenant_caches import CacheKey, TenantCache
from slipring.safety.source_breaker import Breaker

log = logging.getLogger("slipring")

_MAX_BATCH = 32
"""Texts, or pieces of texts, in one call of a source."""
_MAX_WAITING = 1024
"""Texts of one tenant that wait for one check. Further ones fail at once."""
_MAX_BREAKERS = 1024
_LATE = 4
"""A call that takes longer than one part in this many of the timeout keeps no other tenant waiting."""
MOST_LATE = 32
"""Calls of one source that may run beside those that share its ``at_once``, because they take long. So many
calls of other tenants do not keep a tenant waiting."""
_OVERLAP = 10
"""One part in this many of a piece of a long text is repeated in the next piece."""
_OWN_THRESHOLD = 0.5
"""The score from which a category is flagged if neither settings nor source say anything."""
_LONG_CHARS = 256 * 1024
"""The digest of a longer text is computed in a thread."""
_CATEGORY_BYTES = 150
"""Of a remembered verdict: the memory of one category and its score."""
_STOPPING, _NO_TEXT = "the server is stopping", "the text is not valid Unicode"

FailureKind = Literal["timeout", "source", "breaker", "overload", "invalid", "error", "closed"]
"""``source``: it gave a reason. ``breaker``: it was not asked. ``overload``: too many texts wait.
``invalid``: the text is not Unicode. ``error``: it raised something unexpected. ``closed``: the server
stops."""


class SourceFailed(Exception):
    """A source gave no answer. The message says why, for operators and clients: it contains nothing of the
    inspected texts and no secrets."""


class Findings(Struct, frozen=True):
    """What a source says about one subject."""

    scores: dict[str, float] = {}
    """From 0 to 1 by category."""
    flagged: tuple[str, ...] | None = None
    """The categories that the source itself flags. None: those with a score of 0.5 or more."""
    failed: str | None = None
    """Why the source has no answer about this subject, while it may have one about others. Like the message
    of ``SourceFailed``."""


class Source(Protocol):
    """Answers about texts. One source serves all tenants; every method is called on the event loop."""

    @property
    def version(self) -> str:
        """Identifies what the answers depend on, apart from the settings: a model's name, for example."""

    @property
    def longest_match(self) -> int:
        """Characters that a match can have at most; 0 if that is unknown or not applicable."""

    async def start(self) -> None:
        """Acquire what ``inspect`` needs. Raises ``StartupError``."""

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        """One answer for each subject, in their order, or ``SourceFailed`` for all of them.

        Nothing that is kept between calls may reveal one tenant's texts to another, and no call may wait
        for one of another tenant that takes long. The caller cancels calls that take too long.
        """

    async def close(self) -> None:
        """Release everything that ``start`` acquired."""


@contextmanager
def naming(entry: CheckEntry) -> Iterator[None]:
    """Add the name of a check to the message of a ``StartupError``."""
    try:
        yield
    except StartupError as error:
        raise StartupError(f"check {entry.name!r}: {error}") from None


class CheckStatus(Struct, frozen=True):
    """What operators see of a check."""

    name: str
    trouble: str | None
    """Why it gives no answers at present; None if its last answers did not fail."""
    waiting: int
    running: int
    passed: int
    flagged: int
    """Texts that the source was asked about, like those that have passed."""
    remembered: int
    """Texts whose verdict was known."""
    failures: Mapping[FailureKind, int]
    """Texts without an answer."""
    calls: int
    busy_s: float
    """How long the calls of the source took together."""


class _Waiting:
    """A subject that waits for its verdict, or is being inspected."""

    __slots__ = ("future", "key", "subject")

    def __init__(self, key: CacheKey, subject: Subject) -> None:
        self.key = key
        self.subject = subject
        self.future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()


class _Call:
    """A call of the source that runs."""

    __slots__ = ("is_late", "task", "tenant", "timer")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.is_late = False
        """Whether other tenants have stopped waiting for it, because it takes long."""
        self.task: asyncio.Task[None]
        self.timer: asyncio.TimerHandle


class RunningCheck:
    """Inspects subjects with one source.

    Calls of the source are limited in number and in time. What waits meanwhile is sent together, one tenant
    at a time, tenants in turn. A tenant has at most ``at_once`` calls, and so have all tenants together;
    calls that take long count for their own tenant only, so that no other one waits until they time out. A
    subject that is inspected or waits already is not inspected twice. After some failures in a row, the texts
    of a tenant get a failed verdict at once, for a while.
    """

    def __init__(
        self,
        entry: CheckEntry,
        source: Source,
        cache: TenantCache[Verdict],
        clock: Callable[[], float],
        *,
        late_s: float | None = None,
    ) -> None:
        """``late_s``: seconds after which other tenants do not wait for a call any more; by default, a part
        of the check's timeout."""
        self.entry = entry
        self._late_s = entry.timeout_s / _LATE if late_s is None else late_s
        self._source = source
        self._cache = cache
        self._clock = clock
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()
        """Of the tenants whose last calls have failed. A tenant may send texts that a source fails on: that
        must not keep others from being served."""
        self._thresholds = dict(entry.thresholds)
        self._version = ""
        self._queue: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        """By tenant, in the order of their next turns."""
        self._pending: dict[CacheKey, _Waiting] = {}
        self._calls: set[_Call] = set()
        self._closed = False
        self._last_failure = ""
        self._counts: Counter[str] = Counter()
        self._failures: Counter[FailureKind] = Counter()
        self._busy_s = 0.0

    async def start(self) -> None:
        """Raises ``StartupError``."""
        await self._source.start()
        entry = self.entry
        made_of = (self._source.version, entry.source, entry.settings, entry.thresholds, entry.max_chars)
        self._version = blake2b(msgspec.msgpack.encode(made_of), digest_size=8).hexdigest()

    async def close(self) -> None:
        """End all calls; callers that wait get a failed verdict."""
        self._closed = True
        tasks = [call.task for call in self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in list(self._pending.values()):
            self._settle(waiting, self._failure("closed", _STOPPING))
        await self._source.close()

    def check(self) -> Check:
        """The check as policies contain it."""
        entry = self.entry
        return Check(
            name=entry.name,
            version=self._version,
            subjects=entry.subjects,
            action=entry.action,
            mode=entry.mode,
            on_error=entry.on_error,
            on_images=entry.on_images,
            before=entry.before,
            context=entry.context,
            ending=entry.ending,
            longest_match=self._source.longest_match,
        )

    @property
    def trouble(self) -> str | None:
        is_open = any(breaker.is_open for breaker in self._breakers.values())
        return self._last_failure if is_open else None

    def status(self) -> CheckStatus:
        return CheckStatus(
            name=self.entry.name,
            trouble=self.trouble,
            waiting=sum(map(len, self._queue.values())),
            running=len(self._calls),
            passed=self._counts["passed"],
            flagged=self._counts["flagged"],
            remembered=self._counts["remembered"],
            failures=dict(self._failures),
            calls=self._counts["calls"],
            busy_s=self._busy_s,
        )

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Verdict]:
        """One verdict for each subject, within the check's timeout. Raises nothing but a cancellation."""
        digests = [await self._digest(subject) for subject in subjects]
        answers = [
            self._begin(subject, (tenant, digest)) if digest else self._failure("invalid", _NO_TEXT)
            for subject, digest in zip(subjects, digests, strict=True)
        ]
        pending = {each for each in answers if isinstance(each, asyncio.Future)}
        if pending:
            self._dispatch()
            # Not cancelled at the end of the time: a verdict that comes later is good for the next time.
            await asyncio.wait(pending, timeout=self.entry.timeout_s)
        return [self._answer(each) for each in answers]

    def _answer(self, given: "Verdict | asyncio.Future[Verdict]") -> Verdict:
        if isinstance(given, Verdict):
            return given
        if not given.done():
            return self._unanswered(self._too_late)  # counted when its call ends
        return given.result()

    @property
    def _too_late(self) -> str:
        return f"no answer within {self.entry.timeout_s:g} s"

    async def _digest(self, subject: Subject) -> bytes:
        """Identifies this check's verdict about a subject; empty if the subject is not valid Unicode."""
        if len(subject.text) > _LONG_CHARS:
            return await asyncio.to_thread(_digest, self.entry.name, self._version, subject)
        return _digest(self.entry.name, self._version, subject)

    def _begin(self, subject: Subject, key: CacheKey) -> "Verdict | asyncio.Future[Verdict]":
        """A verdict that is known, or the future of one."""
        if (known := self._cache.find(key)) is not None:
            self._counts["remembered"] += 1
            return known
        if (waiting := self._pending.get(key)) is not None:
            return waiting.future
        own = self._queue.setdefault(key[0], deque())
        if len(own) >= _MAX_WAITING:
            return self._failure("overload", "too many texts wait for it")
        waiting = self._pending[key] = _Waiting(key, subject)
        own.append(waiting)
        return waiting.future

    def _dispatch(self) -> None:
        """Start calls for what waits, as many as may run."""
        while not self._closed and self._has_room and (tenant := self._next_tenant()) is not None:
            own = self._queue.pop(tenant)
            batch = _take_batch(own)
            if own:
                self._queue[tenant] = own  # at the end: the others' turns come first
            breaker = self._breakers.get(tenant)
            if breaker is not None and not breaker.admits():
                for waiting in batch:
                    self._settle(waiting, self._failure("breaker", self._last_failure))
                continue
            self._start(batch, tenant)

    @property
    def _has_room(self) -> bool:
        """Whether another call may run, of a tenant that may have one."""
        return sum(not call.is_late for call in self._calls) < self.entry.at_once

    def _next_tenant(self) -> str | None:
        """The first tenant with waiting texts that may have another call."""
        running = Counter(call.tenant for call in self._calls)
        return next((tenant for tenant in self._queue if running[tenant] < self.entry.at_once), None)

    def _start(self, batch: list[_Waiting], tenant: str) -> None:
        call = _Call(tenant)
        call.task = asyncio.create_task(self._call(batch, tenant))
        call.timer = asyncio.get_running_loop().call_later(self._late_s, self._is_late, call)
        self._calls.add(call)
        call.task.add_done_callback(lambda _: self._ended(call))

    def _ended(self, call: _Call) -> None:
        call.timer.cancel()
        self._calls.discard(call)
        self._dispatch()

    def _is_late(self, call: _Call) -> None:
        """A call takes long: other tenants need not wait for it, unless there are too many such calls."""
        if sum(each.is_late for each in self._calls) < MOST_LATE:
            call.is_late = True
            self._dispatch()

    async def _call(self, batch: list[_Waiting], tenant: str) -> None:
        """Ask the source about a batch and settle each of it, whatever happens."""
        began = self._clock()
        self._counts["calls"] += 1
        try:
            async with asyncio.timeout(self.entry.timeout_s):
                findings = await self._ask([waiting.subject for waiting in batch], tenant)
        except TimeoutError:
            self._fail(batch, tenant, "timeout", self._too_late)
        except SourceFailed as error:
            self._fail(batch, tenant, "source", str(error))
        except Exception as error:
            log.exception("check %s failed unexpectedly", self.entry.name)
            self._fail(batch, tenant, "error", f"it failed unexpectedly: {type(error).__name__}")
        else:
            ms = (self._clock() - began) * 1000
            self._succeed(batch, tenant, findings, ms)
        finally:
            self._busy_s += self._clock() - began
            for waiting in batch:  # after a cancellation
                if not waiting.future.done():
                    self._settle(waiting, self._failure("closed", _STOPPING))

    async def _ask(self, subjects: list[Subject], tenant: str) -> list[Findings]:
        """Ask about subjects, long ones in pieces."""
        pieces = [self._pieces(subject) for subject in subjects]
        asked = [piece for each in pieces for piece in each]
        answers: list[Findings] = []
        for at in range(0, len(asked), _MAX_BATCH):
            part = asked[at : at + _MAX_BATCH]
            found = await self._source.inspect(part, tenant)
            if len(found) != len(part) or not all(isinstance(each, Findings) for each in found):
                raise SourceFailed(f"it gave {len(found)} answers about {len(part)} texts")
            answers += found
        remaining = iter(answers)
        return [_merged([next(remaining) for _ in each]) for each in pieces]

    def _pieces(self, subject: Subject) -> list[Subject]:
        size, text = self.entry.max_chars, subject.text
        if not size or len(text) <= size:
            return [subject]
        step = max(size - size // _OVERLAP, 1)
        return [
            structs.replace(subject, text=text[at : at + size])
            for at in range(0, max(len(text) - (size - step), 1), step)
        ]

    def _succeed(self, batch: list[_Waiting], tenant: str, findings: list[Findings], ms: float) -> None:
        failures = [each.failed for each in findings if each.failed is not None]
        if len(failures) == len(findings):
            self._count_failure(tenant, failures[0])
        else:
            self._breakers.pop(tenant, None)
        for waiting, found in zip(batch, findings, strict=True):
            if found.failed is not None:
                self._settle(waiting, self._failure("source", found.failed))
                continue
            verdict = self._verdict(found, ms)
            self._counts["flagged" if verdict.flagged else "passed"] += 1
            size_bytes = _CATEGORY_BYTES * len(verdict.scores)
            self._cache.put(waiting.key, structs.replace(verdict, ms=0.0), size_bytes)
            self._settle(waiting, verdict)

    def _fail(self, batch: list[_Waiting], tenant: str, kind: FailureKind, reason: str) -> None:
        self._count_failure(tenant, reason)
        for waiting in batch:
            self._settle(waiting, self._failure(kind, reason))

    def _count_failure(self, tenant: str, reason: str) -> None:
        log.warning("check %s gave no answer: %s", self.entry.name, reason)
        self._last_failure = reason
        breaker = self._breakers.setdefault(tenant, Breaker(self._clock))
        breaker.failed()
        if len(self._breakers) > _MAX_BREAKERS:
            self._breakers.popitem(last=False)

    def _verdict(self, found: Findings, ms: float) -> Verdict:
        categories = tuple(category for category in found.scores if self._is_flagged(category, found))
        return Verdict(
            check=self.entry.name,
            version=self._version,
            flagged=bool(categories),
            scores=found.scores,
            categories=categories,
            ms=ms,
        )

    def _is_flagged(self, category: str, found: Findings) -> bool:
        """By the category's threshold, else the one for all categories, else as the source says."""
        threshold = self._thresholds.get(category, self._thresholds.get(ANY_CATEGORY))
        if threshold is not None:
            return found.scores[category] >= threshold
        if found.flagged is not None:
            return category in found.flagged
        return found.scores[category] >= _OWN_THRESHOLD

    def _failure(self, kind: FailureKind, reason: str) -> Verdict:
        self._failures[kind] += 1
        return self._unanswered(reason)

    def _unanswered(self, reason: str) -> Verdict:
        return Verdict(check=self.entry.name, version=self._version, flagged=False, failed=reason)

    def _settle(self, waiting: _Waiting, verdict: Verdict) -> None:
        self._pending.pop(waiting.key, None)
        if not waiting.future.done():
            waiting.future.set_result(verdict)


def _digest(check: str, version: str, subject: Subject) -> bytes:
    try:
        return blake2b(msgspec.msgpack.encode((check, version, subject)), digest_size=20).digest()
    except UnicodeEncodeError:
        return b""


def _take_batch(waiting: deque[_Waiting]) -> list[_Waiting]:
    """Remove the next texts that are sent together: few, and not too long together, but at least one."""
    batch = [waiting.popleft()]
    chars = len(batch[0].subject.text)
    while waiting and len(batch) < _MAX_BATCH:
        chars += len(waiting[0].subject.text)
        if chars > _LONG_CHARS:
            break
        batch.append(waiting.popleft())
    return batch


def _merged(pieces: list[Findings]) -> Findings:
    """What was found in any piece of a text. One piece without an answer leaves the text without one."""
    if len(pieces) == 1:
        return pieces[0]
    scores: dict[str, float] = {}
    for piece in pieces:
        for category, score in piece.scores.items():
            scores[category] = max(score, scores.get(category, 0.0))
    flagged = [piece.flagged for piece in pieces if piece.flagged is not None]
    failed = next((piece.failed for piece in pieces if piece.failed is not None), None)
    union = tuple(dict.fromkeys(category for each in flagged for category in each)) if flagged else None
    return Findings(scores, union, failed)
