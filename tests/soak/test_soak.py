"""The soak can fail: its judge finds what grows, its chains find answers that have read something else."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from slipring.config.tables import ModelEntry
from slipring.core.limits import Limits
from tests.harness import serve
from tests.soak.chains import Chain, Wrong, message
from tests.soak.clients import KEYS, LONG, MAX_FRAME_BYTES, SHORT, Visitor
from tests.soak.judging import BOUNDS, Rest, Window, is_long_enough, left_behind, trends

_CALM = Window(
    resident_mib=120.0, descriptors=60.0, tasks=80.0, latency=4.0, cpu_ms=9.0, turns=2000, turn_ms=4.0
)
_COUNT = 30
_GROWTH = {"resident_mib": 2.0, "descriptors": 4.0, "tasks": 5.0, "latency": 0.8, "cpu_ms": 0.8}
"""What a leak adds in each window."""
_REST = Rest(descriptors=25, tasks=13, in_use={"slipring_in_flight": 0})


def _noisy(number: int, random: Random) -> Window:
    """A window of a server that is well, on a machine that is not."""
    return replace(
        _CALM,
        resident_mib=_CALM.resident_mib + random.uniform(-3, 3),
        descriptors=_CALM.descriptors + random.uniform(-5, 5),
        tasks=_CALM.tasks + random.uniform(-10, 10),
        cpu_ms=_CALM.cpu_ms * random.uniform(0.9, 1.1),
        latency=_CALM.latency * random.choice((1.0, 1.0, 1.0, 3.0)) * random.uniform(0.9, 1.2),
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_is_well_passes_on_a_busy_machine(seed: int) -> None:
    random = Random(seed)
    assert [str(each) for each in trends([_noisy(n, random) for n in range(_COUNT)]) if each.has_grown] == []


@pytest.mark.parametrize("name", BOUNDS)
def test_each_figure_that_grows_is_found(name: str) -> None:
    random = Random(1)
    windows = [_noisy(number, random) for number in range(_COUNT)]
    grows = ("latency", "turn_ms") if name == "latency" else (name,)
    windows = [
        replace(window, **{each: getattr(_CALM, each) + number * _GROWTH[name] for each in grows})
        for number, window in enumerate(windows)
    ]
    (grown,) = [each for each in trends(windows) if each.has_grown]
    assert grown.bound is BOUNDS[name]
    assert "GROWS" in str(grown)


_EARLY = (1.9, 1.8, 6.5, 1.9, 6.4, 2.0, 6.3)
"""Latencies of a server that is well, some of them on a machine that is not."""


def _of_latencies(early: Sequence[float], late: Sequence[float], waiting: float = 0.1) -> list[Window]:
    """Windows with these latencies in the two periods that are compared. ``waiting``: of the late ones."""
    calm = [
        replace(_CALM, latency=each, turn_ms=each, waiting=0.1)
        for each in ((2.0,) * 18 + (*early,) + (2.0,) * 8)
    ]
    return calm + [replace(_CALM, latency=each, turn_ms=each, waiting=waiting) for each in late]


def test_a_slow_down_is_found_although_early_windows_were_noisy() -> None:
    windows = _of_latencies(_EARLY, (5.9, 6.6, 5.8, 6.7, 5.9, 6.8, 5.7))
    assert [str(each) for each in trends(windows) if each.has_grown] == [
        "latency: 1.9 → 5.9 × an echo, GROWS"
    ]


def test_noise_that_comes_more_often_at_the_end_is_no_slow_down() -> None:
    assert not any(
        each.has_grown for each in trends(_of_latencies(_EARLY, (6.0, 2.0, 6.1, 2.1, 6.0, 6.2, 2.0)))
    )


def test_echoes_that_become_faster_are_no_slow_down() -> None:
    windows = [replace(each, turn_ms=27.0) for each in _of_latencies(_EARLY, (5.9,) * 7)]
    assert not any(each.has_grown for each in trends(windows))


def test_latency_is_not_judged_if_the_machine_is_much_busier_at_the_end() -> None:
    (latency,) = [
        each for each in trends(_of_latencies(_EARLY, (9.0,) * 7, waiting=0.6)) if not each.is_judged
    ]
    assert not latency.has_grown
    assert str(latency) == "latency: 1.9 → 9.0 × an echo, not judged on a busy machine"


def test_a_cache_that_fills_during_the_warm_up_is_no_leak() -> None:
    windows = [replace(_CALM, resident_mib=80.0 + 10.0 * min(number, 5)) for number in range(_COUNT)]
    assert not any(each.has_grown for each in trends(windows))


@pytest.mark.parametrize(
    ("turns", "grown_mib", "is_leak"), [(2000, 15, True), (300, 15, False), (300, 80, True)]
)
def test_memory_may_grow_while_caches_fill_but_not_more_than_they_hold(
    turns: int, grown_mib: float, is_leak: bool
) -> None:
    """Fewer answers than it takes to fill them: a short soak."""
    windows = [
        replace(_CALM, turns=turns, resident_mib=250.0 + grown_mib * number / 10) for number in range(_COUNT)
    ]
    assert [each.has_grown for each in trends(windows)] == [is_leak, False, False, False, False]


def test_a_soak_of_few_windows_is_not_judged() -> None:
    assert not is_long_enough([])
    assert not is_long_enough([_CALM] * 5)
    assert is_long_enough([_CALM] * _COUNT)


def test_what_clients_leave_behind_is_found() -> None:
    assert left_behind(_REST, _REST) == []
    assert left_behind(_REST, replace(_REST, descriptors=125)) == [
        "100 more descriptors than before the first client"
    ]
    assert left_behind(_REST, replace(_REST, tasks=30)) == ["17 more tasks than before the first client"]
    assert left_behind(_REST, replace(_REST, in_use={"slipring_in_flight": 1})) == [
        "slipring_in_flight is 1 although no client is left"
    ]


def _answer(digest: str, previous: str | None = None) -> dict[str, Any]:
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": f"digest={digest}"}],
    }
    return {"id": "resp_1", "status": "completed", "previous_response_id": previous, "output": [item]}


def test_an_answer_to_another_history_is_wrong() -> None:
    chain, sent = Chain(SHORT, "Be brief."), [message("go")]
    right = chain.copy()
    right.add(sent)
    chain.took_whole(sent, _answer(str(right._digest)))
    assert chain.id == "resp_1"
    with pytest.raises(Wrong, match="another context was read"):
        chain.took_whole(sent, _answer("0" * 16, "resp_1"))
    with pytest.raises(Wrong, match="not an answer to what continues"):
        chain.took_whole(sent, _answer(str(right._digest), "resp_0"))


_MODELS = {
    SHORT: "simulated:tokens_per_s=0,output_tokens=4,tool_calls=2,digest=true",
    LONG: "simulated:tokens_per_s=2000,output_tokens=60,tool_calls=2,digest=true",
}
_LONG = ("old-socket", "slow-socket", "slow-stream", "hosted")
"""They take seconds, or start processes."""


async def test_every_kind_of_client_is_served_rightly() -> None:
    """One visit of each kind, against a server in this process."""
    keys = tuple(f"{name}:{key}" for name, key in KEYS.items())
    limits = Limits(max_frame_bytes=MAX_FRAME_BYTES, steer_after_tokens=8)
    models = tuple(ModelEntry(name, engine, "simulated") for name, engine in _MODELS.items())
    async with serve(api_key=keys, models=models, limits=limits) as running:
        turns: Counter[str] = Counter()
        visitor = Visitor([running.url], Random(1), turns)
        for kind in visitor.behaviours:
            if kind not in _LONG:
                await visitor.visit(kind)
        assert turns.total() > len(visitor.behaviours)
