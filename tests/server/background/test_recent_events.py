"""The latest events of a background run in memory."""

from typing import Any

from slipring.server.background.runs import RecentEvents
from slipring.stores.runs import RunEvent


def events(*numbers: int, size_bytes: int = 10) -> list[RunEvent]:
    return [RunEvent(number, b"x" * size_bytes) for number in numbers]


def numbers_of(found: list[RunEvent] | None) -> list[int] | None:
    return None if found is None else [event.sequence_number for event in found]


def test_after_returns_newer_events() -> None:
    recent = RecentEvents(1000)
    recent.add(events(0, 1, 2))
    assert numbers_of(recent.after(-1)) == [0, 1, 2]
    assert numbers_of(recent.after(1)) == [2]
    assert recent.after(2) == []
    assert recent.after(100) == []


def test_older_events_are_not_looked_at() -> None:
    accesses = 0

    class CountingEvent(RunEvent):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            nonlocal accesses
            accesses += name == "sequence_number"
            return super().__getattribute__(name)

    recent = RecentEvents(2**30)
    recent.add([CountingEvent(number, b"x") for number in range(10_000)])
    accesses = 0
    assert len(recent.after(9_998) or []) == 1
    assert accesses < 20


def test_past_the_limit_the_oldest_events_are_dropped() -> None:
    recent = RecentEvents(30)
    recent.add(events(0, 1, 2))
    assert (numbers_of(recent.after(-1)), recent.used_bytes) == ([0, 1, 2], 30)
    recent.add(events(3, size_bytes=11))
    assert recent.used_bytes <= 30
    assert recent.after(-1) is None
    assert recent.after(0) is None
    assert numbers_of(recent.after(1)) == [2, 3]
    assert numbers_of(recent.after(2)) == [3]


def test_the_newest_event_is_never_dropped() -> None:
    recent = RecentEvents(5)
    recent.add(events(0, 1))
    assert numbers_of(recent.after(0)) == [1]
