"""The stages of a turn, its report and its timing event."""

from typing import Any

import pytest
from msgspec import UNSET

from slipring.base.errors import ContextLengthExceeded, ServerError
from slipring.core.betas import Betas
from slipring.core.generation import (
    Accepted,
    Begun,
    CallArguments,
    CallStarted,
    Delta,
    Finished,
    Prefilled,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
)
from tests.core.connection import Connection, Json, function, only_error, types
from tests.wire import TIMING

DONE = Finished(reason="stop", input_tokens=9, cached_tokens=4, output_tokens=2)


def stages_of(report: Json) -> list[str]:
    return [each["name"] for each in report["stages"]]


def slow_turn(connection: Connection, **fields: Any) -> list[Json]:
    """Complete a turn whose stages each take some seconds; returns its events."""
    server = connection.server
    events = connection.create(**fields)
    for seconds, deltas in ((1, [Accepted(5, "why")]), (2, [Begun()]), (4, [Text("a")]), (8, [Text("b")])):
        server.now += seconds
        events += connection.generate(*deltas)
    server.now += 16
    connection.generate(DONE)
    _, work = connection.starts.popitem()
    return events + connection.done(work)


def test_every_stage_is_timed():
    connection = Connection(accepts=lambda job: False, betas=Betas(timing=True))
    *_, terminal, timing = slow_turn(connection)
    assert terminal["type"] == "response.completed"
    assert timing["type"] == TIMING
    report = timing["timing"]
    took = {each["name"]: each["duration_ms"] / 1000 for each in report["stages"]}
    assert {name: seconds for name, seconds in took.items() if seconds} == {
        "render": 1,
        "engine_queue": 2,
        "prefill": 4,
        "generate": 24,
    }
    assert list(took) == [
        *("decode", "queue", "resolve", "validate", "render", "engine_queue", "prefill", "generate"),
        "terminal",
    ]
    assert report["tokens"] == {"rendered": 5, "input": 9, "cached": 4, "output": 2, "reasoning": 0}
    assert report["fallback"] == "why"
    assert (report["status"], report["total_ms"], report["input_items"]) == ("completed", 31_000, 1)


def test_prefill_ends_with_the_first_token_even_without_text():
    connection = Connection(betas=Betas(timing=True))
    connection.create()
    connection.server.now += 2
    assert connection.generate(Prefilled()) == []
    connection.server.now += 3
    *_, timing = connection.finish(Text("a"))
    took = {each["name"]: each["duration_ms"] for each in timing["timing"]["stages"]}
    assert (took["prefill"], took["generate"]) == (2000, 3000)


def test_waiting_in_a_lane_is_a_stage():
    connection = Connection()
    connection.create()
    connection.create()
    connection.server.now += 3
    connection.complete()
    connection.complete()
    queued = [
        lap.duration_ms for each in connection.reports for lap in each.report.stages if lap.name == "queue"
    ]
    assert queued == [0, 3000]


def test_saving_is_a_stage_of_stored_responses():
    connection = Connection(betas=Betas(timing=True))
    connection.create(store=True)
    connection.finish(Text("a"))
    connection.server.now += 2
    *_, timing = connection.save()
    took = {each["name"]: each["duration_ms"] for each in timing["timing"]["stages"]}
    assert took["store"] == 2000


def test_timing_events_need_their_beta():
    connection = Connection()
    connection.respond()
    assert TIMING not in types(connection.events)
    (record,) = connection.reports
    assert record.report.status == "completed"


def test_a_warmup_is_prefilled_and_generates_nothing():
    connection = Connection(betas=Betas(timing=True))
    connection.create(generate=False)
    *_, timing = connection.finish()
    assert stages_of(timing["timing"])[-3:] == ["prefill", "generate", "terminal"]


def test_the_report_of_a_failed_turn_has_the_error_code():
    connection = Connection(betas=Betas(timing=True))
    connection.create("a")
    *_, failed, timing = connection.fail("a", ServerError())
    assert failed["type"] == "response.failed"
    assert (timing["timing"]["status"], timing["timing"]["error_code"]) == ("failed", "server_error")
    assert timing["stream_id"] == "a"


def time_of(connection: Connection) -> dict[str, float]:
    """The stages of the last report that took any time, in seconds."""
    stages = connection.reports[-1].report.stages
    return {each.name: each.duration_ms / 1000 for each in stages if each.duration_ms}


ENDINGS = [
    ([], "render"),
    ([Accepted()], "engine_queue"),
    ([Accepted(), Begun()], "prefill"),
    ([Accepted(), Begun(), Text("a")], "generate"),
]


@pytest.mark.parametrize(("deltas", "stage"), ENDINGS)
def test_the_time_until_the_engine_fails_belongs_to_the_stage_that_failed(
    deltas: list[Delta], stage: str
) -> None:
    connection = Connection(accepts=lambda job: False)
    connection.create()
    if deltas:
        connection.generate(*deltas)
    connection.server.now += 3
    connection.fail(None, ServerError())
    assert time_of(connection) == {stage: 3}
    assert connection.reports[-1].report.stages[-1].name == "terminal"


@pytest.mark.parametrize(("deltas", "stage"), ENDINGS)
def test_the_time_until_a_client_disconnects_belongs_to_the_stage_that_ran(
    deltas: list[Delta], stage: str
) -> None:
    connection = Connection(accepts=lambda job: False)
    connection.create()
    connection.create()
    if deltas:
        connection.generate(*deltas)
    connection.server.now += 3
    connection.hang_up()
    running, waiting = connection.reports
    assert {running.report.stages[-1].name, waiting.report.stages[-1].name} == {stage, "queue"}
    assert running.report.total_ms == waiting.report.total_ms == 3000


def test_the_time_until_a_parent_is_not_found_belongs_to_resolving() -> None:
    connection = Connection()
    connection.create(previous="resp_9", store=False)
    connection.server.now += 3
    connection.load()
    assert time_of(connection) == {"resolve": 3}


def test_the_time_until_the_store_fails_belongs_to_storing() -> None:
    connection = Connection()
    connection.create(store=True)
    connection.finish(Text("a"))
    connection.server.now += 3
    connection.fail()
    assert time_of(connection) == {"store": 3}


@pytest.mark.parametrize("stage", ["weigh", "compact"])
def test_the_time_until_a_compaction_fails_belongs_to_its_stage(stage: str) -> None:
    connection = Connection()
    connection.create(context_management=[{"type": "compaction", "compact_threshold": 100}])
    if stage == "compact":
        connection.weigh(100)
    connection.server.now += 3
    connection.fail()
    assert time_of(connection) == {stage: 3}


def test_the_time_until_a_job_fails_that_needs_no_compaction_is_that_of_rendering() -> None:
    connection = Connection(accepts=lambda job: False)
    connection.create(context_management=[{"type": "compaction", "compact_threshold": 1_000_000}])
    connection.server.now += 3
    connection.fail()
    assert time_of(connection) == {"render": 3}


def test_the_time_until_a_paused_rollout_is_dropped_is_its_clients() -> None:
    connection = Connection(betas=Betas(rollout=True))
    connection.create(rollout=True, tools=[function("f")])
    connection.finish(CallStarted(kind="function", name="f"), CallArguments("{}"))
    connection.server.now += 3
    connection._run(connection.session.closed())
    assert connection.reports[-1].report.stages[-1].name == "client"
    assert time_of(connection) == {"client": 3}


def test_the_time_of_a_summary_that_is_empty_belongs_to_its_stage() -> None:
    connection = Connection()
    connection.create(context_management=[{"type": "compaction", "compact_threshold": 100}])
    connection.weigh(100)
    connection.server.now += 3
    assert connection.finish(Text(" "))[-1]["type"] == "response.failed"
    assert time_of(connection) == {"compact": 3}


def test_a_turn_that_ended_within_its_prefill_has_no_first_token() -> None:
    connection = Connection()
    connection.create()
    connection.generate(Begun())
    connection.server.now += 3
    connection.fail()
    assert time_of(connection) == {"prefill": 3}
    assert connection.reports[-1].report.first_token_ms is None


def test_a_refused_turn_is_recorded_without_a_timing_event():
    connection = Connection(betas=Betas(timing=True))
    only_error(connection.create(previous="resp_9", store=False) + connection.load())
    (record,) = connection.reports
    assert (record.report.status, record.report.error_code) == ("refused", "previous_response_not_found")
    assert record.report.previous_response_id == "resp_9"


# Engines that may refuse a job.


def test_a_response_exists_only_once_the_engine_accepts():
    connection = Connection(accepts=lambda job: False)
    assert connection.create() == []
    assert types(connection.generate(Accepted())) == ["created", "in_progress"]
    assert connection.generate(Begun()) == []
    assert types(connection.generate(Text("a")))[0] == "output_item.added"


def test_the_first_delta_accepts_the_job():
    connection = Connection(accepts=lambda job: False)
    connection.create()
    assert types(connection.generate(Text("a")))[:3] == ["created", "in_progress", "output_item.added"]
    connection = Connection(accepts=lambda job: False)
    connection.create()
    assert types(connection.generate()) == ["created", "in_progress"]


def test_a_job_that_the_engine_refuses_is_an_error_without_a_response():
    connection = Connection()
    first = connection.respond("a")
    connection._accepts = lambda job: False
    connection.create("a", previous=first["id"])
    error = only_error(connection.fail("a", ContextLengthExceeded(9000, 8192)))
    assert (error["status"], error["error"]["code"]) == (400, "context_length_exceeded")
    assert (error["error"]["param"], error["stream_id"]) == ("input", "a")
    assert first["id"] not in connection.cache, "as after every failed continuation on its lane"
    assert connection.session.in_flight == 0


def test_the_next_turn_of_the_lane_begins_after_a_refusal():
    connection = Connection(accepts=lambda job: False)
    connection.create(metadata={"n": "1"})
    connection.create(metadata={"n": "2"})
    sent = connection.fail(None, ContextLengthExceeded(2, 1))
    only_error(sent)
    assert types(connection.generate(Accepted()))[0] == "created"
    assert connection.events[-1]["response"]["metadata"] == {"n": "2"}


def test_the_end_of_the_connection_refuses_a_job_that_is_not_accepted_yet():
    connection = Connection(accepts=lambda job: False)
    connection.create()
    connection.end(ServerError(), grace_s=5)
    sent = connection.tick(6)
    assert types(sent) == ["error", "error"]
    assert len(connection.cancelled) == 1
    assert connection.close is not None


def test_a_client_that_disconnects_cancels_a_job_that_is_not_accepted_yet():
    connection = Connection(accepts=lambda job: False)
    connection.create()
    assert connection.hang_up() == []
    assert len(connection.cancelled) == 1


def test_an_engines_position_counts_along_a_chain_without_what_it_shares():
    class Kept:
        size_bytes = 1000

        def unshared_bytes(self, earlier: Any) -> int:
            return 1000

    class KeptMore(Kept):
        size_bytes = 1500

        def unshared_bytes(self, earlier: Any) -> int:
            return 1500 if isinstance(earlier, KeptMore) else 500

    connection = Connection()
    sizes = []
    previous = None
    for position in (None, None, Kept(), KeptMore(), KeptMore()):
        before = connection.cache.used_bytes
        connection.create(previous=previous)
        connection.finish(Text("ok"), position=position)
        previous = connection.order.responses[-1]["id"]
        sizes.append(connection.cache.used_bytes - before)
    assert [size - sizes[1] for size in sizes[2:]] == [1000, 500, 1500]


# Tokens of turns that are cut off.


def tokens_of(connection: Connection) -> Any:
    """The token counts of the last turn that has ended."""
    return connection.reports[-1].report.tokens


def test_the_tokens_of_a_cancelled_turn_are_estimated():
    connection = Connection()
    first = connection.respond(input="x" * 400)
    counted = first["usage"]["total_tokens"]
    connection.create(previous=first["id"], input="y" * 800)
    connection.generate(Begun(), Thought("z" * 40), Text("a" * 20), Text("b" * 21))
    connection.hang_up()
    tokens = tokens_of(connection)
    assert counted + 200 <= tokens.input < counted + 250, "what is new, beside what the engine has counted"
    assert 10 + 11 <= tokens.output < 10 + 11 + 60, "the thought is a finished item, with an id and so on"
    assert tokens.cached == 0


@pytest.mark.parametrize(
    ("deltas", "tokens"),
    [
        ([Text("a" * 40)], 10),
        ([RefusalText("a" * 40)], 10),
        ([RefusalText("a" * 20), Text("b" * 20)], 10),
        ([ThoughtSummary("a" * 20), Thought("b" * 20)], 10),
        ([CallStarted("function", "add"), CallArguments("a" * 40)], 10),
        ([Prefilled()], 0),
    ],
)
def test_every_kind_of_open_item_counts(deltas: list[Delta], tokens: int):
    connection = Connection()
    connection.create(input="x" * 400, tools=[function("add")])
    connection.generate(*deltas)
    connection.hang_up()
    assert tokens_of(connection).input > 100
    assert tokens_of(connection).output == tokens


def test_a_job_that_its_engine_has_not_begun_has_no_tokens():
    connection = Connection(accepts=lambda job: False)
    connection.create(input="x" * 400)
    connection.generate(Accepted(100))
    connection.hang_up()
    assert tokens_of(connection) is UNSET


def test_a_failed_turn_has_no_tokens():
    connection = Connection()
    connection.create(input="x" * 400)
    connection.generate(Text("a" * 40))
    connection.fail()
    assert tokens_of(connection) is UNSET


@pytest.mark.parametrize("summed_up", [False, True])
def test_the_summary_of_a_cancelled_compaction_counts(summed_up: bool):
    connection = Connection()
    connection.create(input="x" * 400, context_management=[{"type": "compaction", "compact_threshold": 1000}])
    connection.weigh(1000)
    connection.generate(Text("s" * 40))
    if summed_up:
        connection.finish()
        connection.generate(Begun())
    connection.hang_up()
    tokens = tokens_of(connection)
    assert tokens.input > 100
    assert tokens.output == (3 if summed_up else 10)
