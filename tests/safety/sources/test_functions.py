"""Checks that are Python functions: answers, exceptions, threads, entry points."""

import asyncio
import threading
import time
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.config.tables import CheckEntry
from slipring.core.checks.verdicts import Subject
from slipring.core.tenant_caches import TenantCache
from slipring.safety.source_calls import RunningCheck, SourceFailed
from slipring.safety.sources import functions
from slipring.safety.sources.functions import CheckThreads, Functions, find_factory
from tests.safety.checking import answering, said, synchronous_check


async def started(factory: Any, **settings: Any) -> Functions:
    source = Functions("c", factory, settings, at_once=2)
    await source.start()
    return source


@pytest.mark.parametrize(
    ("answer", "scores"),
    [(True, {"c": 1.0}), (0.25, {"c": 0.25}), ({}, {}), ({"a": 1, "b": 0.5}, {"a": 1.0, "b": 0.5})],
)
async def test_scores_have_several_forms(answer: object, scores: dict[str, float]) -> None:
    source = await started(lambda: answering(answer))
    assert [each.scores for each in await source.inspect([said("x")], "t")] == [scores]


@pytest.mark.parametrize("thread", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "0.5",
        1.5,
        -1,
        float("nan"),
        {"a": "high"},
        {"a": 2},
        [0.5],
        ValueError("the text"),
        StopIteration(),
    ],
)
async def test_nonsense_and_exceptions_are_failures_without_the_text(answer: object, thread: bool) -> None:
    source = await started(lambda: answering(answer), thread=thread)
    with pytest.raises(SourceFailed) as raised:
        await source.inspect([said("the text")], "t")
    assert "text" not in str(raised.value)


async def test_a_plain_function_runs_in_a_thread_and_may_be_kept_on_the_loop() -> None:
    names: list[str] = []

    def check(subject: Subject) -> float:
        names.append(threading.current_thread().name)
        return 0.0

    for thread in (True, False):
        source = await started(lambda: check, thread=thread)
        await source.inspect([said("x")], "t")
    assert names[0] == "check-c"
    assert names[1] == threading.current_thread().name


async def test_threads_that_hang_make_further_calls_of_their_tenant_fail_at_once() -> None:
    threads, go = CheckThreads("c", 2, 3), threading.Event()
    hanging = [asyncio.create_task(threads.run(go.wait, "t")) for _ in range(2)]
    await asyncio.sleep(0)
    for task in hanging:
        task.cancel()
    with pytest.raises(SourceFailed, match="busy"):
        await threads.run(lambda: 1, "t")
    assert await threads.run(lambda: 1, "other") == 1
    third = asyncio.create_task(threads.run(go.wait, "other"))
    await asyncio.sleep(0)
    with pytest.raises(SourceFailed, match="busy"):  # there are three threads in all
        await threads.run(lambda: 1, "another")
    go.set()
    await third
    while True:  # the threads are free again as soon as they have returned
        try:
            assert await threads.run(lambda: 1, "t") == 1
            break
        except SourceFailed:
            await asyncio.sleep(0)
    threads.close()


async def test_texts_of_one_tenant_that_hang_do_not_fail_those_of_others() -> None:
    """Function checks share nothing that one tenant can occupy: neither calls nor threads."""
    go, hanging = threading.Event(), threading.Semaphore(0)

    def check(subject: Subject) -> bool:
        if subject.text.startswith("hang"):
            hanging.release()
            go.wait()
        return subject.text == "bad"

    entry = CheckEntry("c", "x", timeout_s=60, at_once=2)
    source = Functions("c", lambda: check, {}, at_once=2)
    running = RunningCheck(entry, source, TenantCache(2**20), time.monotonic, late_s=0.0)
    await running.start()
    long = "x" * 200_000  # so that each is a call of its own
    texts = [asyncio.create_task(running.inspect([said(f"hang{n}{long}")], "a")) for n in range(6)]
    for _ in range(2):
        await asyncio.to_thread(hanging.acquire)
    (good,), (bad,) = await running.inspect([said("good")], "b"), await running.inspect([said("bad")], "b")
    assert (good.flagged, good.failed) == (False, None)
    assert (bad.flagged, bad.failed) == (True, None)
    assert running.status().running == 2, "a tenant has no more calls than one may have"
    go.set()
    assert [verdict.failed for (verdict,) in await asyncio.gather(*texts)] == [None] * 6
    await running.close()


async def test_a_factory_gets_the_settings() -> None:
    source = await started(synchronous_check, word="tea")
    found = await source.inspect([said("tea"), said("bomb")], "t")
    assert [each.scores["danger"] for each in found] == [0.9, 0.1]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("python:nowhere", "MODULE:FACTORY"),
        ("python:no.such.module:check", "cannot be imported: ModuleNotFoundError"),
        ("python:tests.safety.checking:nothing", "cannot be imported: AttributeError"),
        ("python:tests.safety.checking:BAD", "names no function"),
    ],
)
def test_a_source_that_cannot_be_imported_is_reported(source: str, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        find_factory(source)


@pytest.mark.parametrize(
    ("factory", "settings", "reason"),
    [
        (lambda: 1 / 0, {}, "its factory raised ZeroDivisionError"),
        (lambda: 7, {}, "returned no function"),
        (synchronous_check, {"words": "x"}, "raised TypeError.*words"),
        (synchronous_check, {"thread": "yes"}, "thread must be true or false"),
    ],
)
async def test_a_factory_that_fails_is_reported(factory: Any, settings: Any, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        await started(factory, **settings)


def test_an_entry_point_names_a_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("danger", "tests.safety.checking:synchronous_check", functions.GROUP)
    monkeypatch.setattr(functions, "entry_points", lambda **wanted: EntryPoints([point]).select(**wanted))
    assert find_factory("danger") is synchronous_check
    assert find_factory("another") is None
