"""A check at work: each text once, limits, timeouts, the breaker, and answers that make no sense."""

import asyncio
from typing import Any

import pytest

from slipring.safety.source_calls import MOST_LATE, Findings, RunningCheck, SourceFailed
from tests.loop_clock import LoopClock
from tests.safety.checking import Clock, ControlledSource, running, said
from tests.safety.guarding import BAD


async def verdicts(check: RunningCheck, *texts: str, tenant: str = "t") -> list[Any]:
    return await check.inspect([said(text) for text in texts], tenant)


async def test_each_text_of_a_tenant_is_inspected_once() -> None:
    source = ControlledSource()
    check = await running(source)
    first = await verdicts(check, "a", BAD, "a")
    assert [each.flagged for each in first] == [False, True, False]
    assert (first[1].check, first[1].categories, first[1].scores) == ("c", ("danger",), {"danger": 0.9})
    again = await verdicts(check, BAD, "a")
    assert [(each.flagged, each.ms) for each in again] == [(True, 0.0), (False, 0.0)]
    assert source.calls == [("t", ["a", BAD])]
    assert check.status().remembered == 2


async def test_tenants_share_no_verdicts() -> None:
    source = ControlledSource()
    check = await running(source)
    await verdicts(check, "a", tenant="one")
    await verdicts(check, "a", tenant="two")
    assert source.calls == [("one", ["a"]), ("two", ["a"])]


async def test_the_same_text_in_another_role_is_another_subject() -> None:
    source = ControlledSource()
    check = await running(source)
    subjects = [said("a"), said("a", kind="tool_output", role=None), said("a", context=("b",))]
    await check.inspect(subjects, "t")
    assert source.calls == [("t", ["a", "a", "a"])]


async def test_a_text_that_is_being_inspected_is_waited_for() -> None:
    source = ControlledSource()
    check = await running(source)
    source.gate.clear()
    both = [asyncio.create_task(verdicts(check, BAD)) for _ in range(2)]
    await source.began.acquire()
    source.gate.set()
    assert [[each.flagged for each in await task] for task in both] == [[True], [True]]
    assert len(source.calls) == 1


async def test_what_waits_is_sent_together_and_tenants_take_turns() -> None:
    source = ControlledSource()
    check = await running(source, at_once=1)
    source.gate.clear()
    tasks = [asyncio.create_task(verdicts(check, "first", tenant="a"))]
    await source.began.acquire()
    for tenant, text in (("a", "x"), ("b", "y"), ("a", "z")):
        tasks.append(asyncio.create_task(verdicts(check, text, tenant=tenant)))
    await asyncio.sleep(0)
    assert check.status().waiting == 3
    source.gate.set()
    await asyncio.gather(*tasks)
    assert source.calls == [("a", ["first"]), ("a", ["x", "z"]), ("b", ["y"])]
    assert source.most_running == 1


async def test_a_call_that_takes_long_keeps_no_other_tenant_waiting() -> None:
    source = ControlledSource()
    check = await running(source, at_once=1, timeout_s=60, late_s=0.0)
    source.gate.clear()
    tasks = []
    for number in range(MOST_LATE + 2):
        tasks.append(asyncio.create_task(verdicts(check, "x", tenant=f"tenant {number}")))
        tasks.append(asyncio.create_task(verdicts(check, "y", tenant=f"tenant {number}")))
    for _ in range(MOST_LATE + 1):
        await source.began.acquire()
    status = check.status()
    # One call for each tenant, and no more in all than there may be.
    assert [tenant for tenant, _ in source.calls] == [f"tenant {number}" for number in range(MOST_LATE + 1)]
    assert (status.running, status.waiting) == (
        MOST_LATE + 1,
        2 * (MOST_LATE + 2) - sum(len(texts) for _, texts in source.calls),
    )
    source.gate.set()
    assert all(verdict.failed is None for (verdict,) in await asyncio.gather(*tasks))


async def test_a_batch_is_bounded() -> None:
    source = ControlledSource()
    check = await running(source)
    found = await verdicts(check, *map(str, range(70)))
    assert not any(each.failed for each in found)
    assert sorted(len(texts) for _, texts in source.calls) == [6, 32, 32]
    assert source.most_running <= check.entry.at_once


async def test_long_texts_are_not_sent_together() -> None:
    source = ControlledSource()
    check = await running(source)
    half = "x" * 140_000
    await verdicts(check, "a", half, f"{half}y", "b", "x" * 300_000)
    assert [[len(text) for text in texts] for _, texts in source.calls] == [
        [1, 140_000],
        [140_001, 1],
        [300_000],
    ]


async def test_many_pieces_are_sent_in_several_calls() -> None:
    source = ControlledSource()
    check = await running(source, max_chars=10)
    (found,) = await verdicts(check, "x" * 801 + BAD)
    assert found.flagged
    assert [len(texts) for _, texts in source.calls] == [32, 32, 26]


async def test_texts_past_the_bound_fail_at_once() -> None:
    source = ControlledSource()
    check = await running(source)
    found = await verdicts(check, *map(str, range(1025)))
    assert [each.failed for each in found[:1024]] == [None] * 1024
    assert found[1024].failed == "too many texts wait for it"
    assert check.status().failures == {"overload": 1}


async def test_a_source_that_hangs_fails_in_time_and_its_late_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LoopClock(monkeypatch)
    source = ControlledSource()
    check = await running(source, timeout_s=60)
    source.gate.clear()
    waiting = asyncio.create_task(verdicts(check, "a"))
    await source.began.acquire()
    clock.advance(61)
    (found,) = await waiting
    assert (found.flagged, found.failed) == (False, "no answer within 60 s")
    await source.ended.acquire()  # the call is cancelled, too
    source.gate.set()
    assert (await verdicts(check, "a"))[0].failed is None


async def test_failures_are_not_remembered_and_do_not_tell_the_text() -> None:
    source = ControlledSource()
    check = await running(source)
    source.error = ValueError("the secret text")
    (found,) = await verdicts(check, "the secret text")
    assert found.failed == "it failed unexpectedly: ValueError"
    source.error = None
    assert (await verdicts(check, "the secret text"))[0].failed is None


async def test_the_breaker_opens_after_failures_in_a_row_and_tries_again_later() -> None:
    source, clock = ControlledSource(), Clock()
    check = await running(source, clock)
    source.error = SourceFailed("down")
    for number in range(5):
        assert check.status().trouble is None
        assert (await verdicts(check, str(number)))[0].failed == "down"
    assert check.status().trouble == "down"
    assert (await verdicts(check, "x"))[0].failed == "down"
    assert (len(source.calls), check.status().failures) == (5, {"source": 5, "breaker": 1})
    clock.now = 5.0
    await verdicts(check, "x")
    clock.now = 14.0  # the pause has grown
    await verdicts(check, "x")
    assert len(source.calls) == 6
    clock.now, source.error = 15.0, None
    assert (await verdicts(check, "x"))[0].failed is None
    assert check.status().trouble is None


async def test_an_open_breaker_lets_one_call_through_at_a_time() -> None:
    source, clock = ControlledSource(), Clock()
    check = await running(source, clock)
    source.error = SourceFailed("down")
    for number in range(5):
        await verdicts(check, str(number))
    clock.now, source.error = 5.0, None
    source.gate.clear()
    trial = asyncio.create_task(verdicts(check, "x"))
    for _ in range(6):
        await source.began.acquire()
    assert (await verdicts(check, "y"))[0].failed == "down"
    source.gate.set()
    assert (await trial)[0].failed is None
    assert (await verdicts(check, "y"))[0].failed is None


async def test_a_tenant_whose_texts_fail_does_not_open_the_breaker_of_others() -> None:
    source = ControlledSource()
    check = await running(source)
    source.answers = [Findings(failed="no valid answer")]
    for number in range(6):
        await verdicts(check, str(number), tenant="attacker")
    assert len(source.calls) == 5
    source.answers = None
    assert (await verdicts(check, "a", tenant="other"))[0].failed is None
    assert (await verdicts(check, "a", tenant="attacker"))[0].failed is not None


@pytest.mark.parametrize("answers", [[], [Findings()] * 2, [None], [{"danger": 1.0}]], ids=str)
async def test_an_answer_that_makes_no_sense_is_a_failure(answers: list[Any]) -> None:
    source = ControlledSource()
    check = await running(source)
    source.answers = answers
    (found,) = await verdicts(check, "a")
    assert found.failed is not None
    assert found.failed.startswith(f"it gave {len(answers)} answers about 1 texts")


async def test_a_failed_text_of_a_batch_leaves_the_others_their_verdicts() -> None:
    source = ControlledSource()
    check = await running(source)
    source.answers = [Findings({"danger": 1.0}), Findings(failed="no valid answer")]
    found = await verdicts(check, "a", "b")
    assert [(each.flagged, each.failed) for each in found] == [(True, None), (False, "no valid answer")]


@pytest.mark.parametrize(
    ("thresholds", "flagged", "expected"),
    [
        ((), None, ("high", "half")),
        ((), ("low",), ("low",)),
        ((("*", 0.8),), ("low",), ("high",)),
        ((("*", 0.8), ("low", 0.1)), None, ("high", "low")),
        ((("half", 0.6),), None, ("high",)),
    ],
)
async def test_thresholds_take_precedence_over_the_source(
    thresholds: Any, flagged: Any, expected: tuple[str, ...]
) -> None:
    source = ControlledSource()
    check = await running(source, thresholds=thresholds)
    source.answers = [Findings({"high": 0.9, "half": 0.5, "low": 0.2}, flagged)]
    (found,) = await verdicts(check, "a")
    assert (found.categories, found.flagged) == (expected, True)


async def test_a_long_text_is_inspected_in_pieces_that_overlap() -> None:
    source = ControlledSource()
    check = await running(source, max_chars=50)
    text = "x" * 47 + BAD + "y" * 70
    (found,) = await verdicts(check, text)
    assert found.flagged
    pieces = source.calls[0][1]
    assert [len(piece) for piece in pieces] == [50, 50, 31]
    assert pieces[0] + "".join(piece[5:] for piece in pieces[1:]) == text


@pytest.mark.parametrize("length", [19, 20, 21, 38, 39, 200])
async def test_pieces_cover_the_whole_text(length: int) -> None:
    source = ControlledSource()
    check = await running(source, max_chars=20)
    text = "".join(chr(0x4E00 + number) for number in range(length))
    await verdicts(check, text)
    pieces = source.calls[0][1]
    assert pieces[0] + "".join(piece[2:] for piece in pieces[1:]) == text
    assert all(pieces)


async def test_versions_differ_where_verdicts_may() -> None:
    source = ControlledSource()
    fields: list[dict[str, Any]] = [{}, {"thresholds": (("*", 0.1),)}, {"settings": "{}{}"}, {"max_chars": 9}]
    versions = {(await running(source, **each)).check().version for each in fields}
    assert len(versions) == len(fields)
    assert (await running(source, action="block", timeout_s=9)).check().version in versions


async def test_closing_settles_everybody() -> None:
    source = ControlledSource()
    check = await running(source, at_once=1)
    source.gate.clear()
    tasks = [asyncio.create_task(verdicts(check, text, tenant=text)) for text in "ab"]
    await source.began.acquire()
    await check.close()
    assert [(await task)[0].failed for task in tasks] == ["the server is stopping"] * 2
    assert len(source.calls) == 1


async def test_a_text_that_is_not_unicode_gets_a_failed_verdict() -> None:
    check = await running(ControlledSource())
    assert (await verdicts(check, "\ud800"))[0].failed == "the text is not valid Unicode"
