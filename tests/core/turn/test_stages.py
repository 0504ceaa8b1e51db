"""Where a turn's time goes, and who is told."""

from typing import Any

from slipring.core.betas import Betas
from slipring.core.generation import Accepted, Begun, Finished, Prefilled, Text
from slipring.errors import ContextLengthExceeded, ServerError
from tests.core.stage import Json, Stage, only_error, types
from tests.wire import TIMING

DONE = Finished(reason="stop", input_tokens=9, cached_tokens=4, output_tokens=2)


def stages_of(report: Json) -> list[str]:
    return [stage["name"] for stage in report["stages"]]


def slow_turn(stage: Stage, **fields: Any) -> list[Json]:
    """A turn each of whose steps takes some seconds."""
    world = stage.world
    events = stage.create(**fields)
    turn = next(iter(stage.starts))
    for seconds, deltas in ((1, [Accepted(5, "why")]), (2, [Begun()]), (4, [Text("a")]), (8, [Text("b")])):
        world.now += seconds
        events += stage.say(*deltas)
    world.now += 16
    stage.say(DONE)
    del stage.starts[turn]
    return events + stage._run(stage.session.finished(turn, world.now))


def test_every_stage_has_its_own_time():
    stage = Stage(accepts=lambda job: False, betas=Betas(timing=True))
    *_, terminal, timing = slow_turn(stage)
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
    assert report["tokens"] == {"rendered": 5, "input": 9, "cached": 4, "output": 2}
    assert report["fallback"] == "why"
    assert (report["status"], report["total_ms"], report["input_items"]) == ("completed", 31_000, 1)


def test_reading_the_context_ends_with_the_first_token_though_it_says_nothing():
    stage = Stage(betas=Betas(timing=True))
    stage.create()
    stage.world.now += 2
    assert stage.say(Prefilled()) == []
    stage.world.now += 3
    *_, timing = stage.finish(Text("a"))
    took = {each["name"]: each["duration_ms"] for each in timing["timing"]["stages"]}
    assert (took["prefill"], took["generate"]) == (2000, 3000)


def test_waiting_in_a_lane_is_a_stage():
    stage = Stage()
    stage.create()
    stage.create()
    stage.world.now += 3
    stage.complete()
    stage.complete()
    queued = [lap.duration_ms for each in stage.reports for lap in each.report.stages if lap.name == "queue"]
    assert queued == [0, 3000]


def test_making_a_response_durable_is_a_stage_of_those_that_are_stored():
    stage = Stage(betas=Betas(timing=True))
    stage.create(store=True)
    stage.finish(Text("a"))
    stage.world.now += 2
    *_, timing = stage.save()
    took = {each["name"]: each["duration_ms"] for each in timing["timing"]["stages"]}
    assert took["store"] == 2000


def test_nobody_is_told_who_did_not_ask():
    stage = Stage()
    stage.respond()
    assert TIMING not in types(stage.events)
    (record,) = stage.reports
    assert record.report.status == "completed"


def test_a_warmup_is_prefilled_and_generates_nothing():
    stage = Stage(betas=Betas(timing=True))
    stage.create(generate=False)
    *_, timing = stage.finish()
    assert stages_of(timing["timing"])[-3:] == ["prefill", "generate", "terminal"]


def test_a_turn_that_fails_is_told_with_its_code():
    stage = Stage(betas=Betas(timing=True))
    stage.create("a")
    *_, failed, timing = stage.fail("a", ServerError())
    assert failed["type"] == "response.failed"
    assert (timing["timing"]["status"], timing["timing"]["error_code"]) == ("failed", "server_error")
    assert timing["stream_id"] == "a"


def test_a_turn_that_is_refused_leaves_a_report_and_no_event():
    stage = Stage(betas=Betas(timing=True))
    only_error(stage.create(previous="resp_9", store=False) + stage.load())
    (record,) = stage.reports
    assert (record.report.status, record.report.error_code) == ("refused", "previous_response_not_found")
    assert record.report.previous_response_id == "resp_9"


# An engine that may refuse


def test_a_response_exists_only_once_the_engine_accepts():
    stage = Stage(accepts=lambda job: False)
    assert stage.create() == []
    assert types(stage.say(Accepted())) == ["created", "in_progress"]
    assert stage.say(Begun()) == []
    assert types(stage.say(Text("a")))[0] == "output_item.added"


def test_the_first_delta_accepts_where_the_engine_says_nothing_before():
    stage = Stage(accepts=lambda job: False)
    stage.create()
    assert types(stage.say(Text("a")))[:3] == ["created", "in_progress", "output_item.added"]
    stage = Stage(accepts=lambda job: False)
    stage.create()
    assert types(stage.say()) == ["created", "in_progress"]


def test_a_job_that_the_engine_refuses_is_an_error_and_no_response():
    stage = Stage()
    first = stage.respond("a")
    stage._accepts = lambda job: False
    stage.create("a", previous=first["id"])
    error = only_error(stage.fail("a", ContextLengthExceeded(9000, 8192)))
    assert (error["status"], error["error"]["code"]) == (400, "context_length_exceeded")
    assert (error["error"]["param"], error["stream_id"]) == ("input", "a")
    assert first["id"] not in stage.cache, "as after every failed continuation on its lane"
    assert stage.session.in_flight == 0


def test_the_next_in_the_lane_comes_after_a_refusal():
    stage = Stage(accepts=lambda job: False)
    stage.create(metadata={"n": "1"})
    stage.create(metadata={"n": "2"})
    told = stage.fail(None, ContextLengthExceeded(2, 1))
    only_error(told)
    assert types(stage.say(Accepted()))[0] == "created"
    assert stage.events[-1]["response"]["metadata"] == {"n": "2"}


def test_a_connection_that_ends_while_the_engine_reads_refuses_the_job():
    stage = Stage(accepts=lambda job: False)
    stage.create()
    stage.end(ServerError(), grace_s=5)
    told = stage.tick(6)
    assert types(told) == ["error", "error"]
    assert len(stage.cancelled) == 1
    assert stage.close is not None


def test_a_client_that_leaves_while_the_engine_reads_cancels_the_job():
    stage = Stage(accepts=lambda job: False)
    stage.create()
    assert stage.hang_up() == []
    assert len(stage.cancelled) == 1


def test_what_an_engine_keeps_is_charged_once_along_a_chain():
    class Kept:
        size_bytes = 1000

    class KeptMore:
        size_bytes = 1500

    stage = Stage()
    sizes = []
    previous = None
    for position in (None, None, Kept(), KeptMore()):
        before = stage.cache.used_bytes
        stage.create(previous=previous)
        stage.finish(Text("ok"), position=position)
        previous = stage.order.responses[-1]["id"]
        sizes.append(stage.cache.used_bytes - before)
    assert (sizes[2] - sizes[1], sizes[3] - sizes[1]) == (1000, 500)
