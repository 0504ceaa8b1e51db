"""Stop sequences: where the text of an answer ends, whatever pieces it comes in."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slipring.core.generation import (
    CallStarted,
    Delta,
    Finished,
    Job,
    Settings,
    Text,
    Thought,
)
from slipring.engines.constraints.stop_sequences import watched
from slipring.protocol.responses import Logprob
from tests.engines.constraints.test_custom_tool_inputs import job_with
from tests.harness import serve


class Position(msgspec.Struct):
    size_bytes: int = 0


def stopping(*sequences: str) -> Job:
    return structs.replace(job_with(), settings=Settings(stop=sequences))


def ended(reason: str = "stop") -> Finished:
    return Finished(reason, 1, 0, 1, position=Position(), context=Position())  # type: ignore[arg-type]


def passed(job: Job, *batches: list[Delta]) -> list[Delta]:
    """What reaches the client of what an engine emits."""
    emitted: list[Delta] = []
    emit = watched(job, emitted.extend)
    for batch in batches:
        emit(batch)
    return emitted


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


def test_the_text_ends_before_a_sequence_and_the_engine_is_asked_to_end() -> None:
    job = stopping("END")
    deltas = passed(job, [Text("one E")], [Text("ND two")], [Text(" three"), ended("steered")])
    assert text_of(deltas) == "one "
    last = deltas[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.stop_sequence, last.position) == ("stop", "END", None)
    assert last.context is not None
    assert job.stop.asked


def test_what_only_begins_like_a_sequence_is_sent() -> None:
    job = stopping("END", "###")
    deltas = passed(job, [Text("one EN")], [Text("T#")], [Text("#"), ended()])
    assert text_of(deltas) == "one ENT##"
    last = deltas[-1]
    assert isinstance(last, Finished)
    assert last.stop_sequence is None
    assert last.position is not None
    assert not job.stop.asked


def test_the_engine_is_asked_again_after_the_core_has_reset_it() -> None:
    job = stopping("x")
    emit = watched(job, lambda deltas: None)
    emit([Text("ax")])
    job.stop.asked = False
    emit([Text("b")])
    assert job.stop.asked


def test_thoughts_and_calls_are_not_searched_and_divide_the_text() -> None:
    deltas = passed(
        stopping("END"),
        [Thought("END")],
        [Text("E"), CallStarted("function", "run")],
        [Text("ND"), ended()],
    )
    assert text_of(deltas) == "END"
    assert [type(delta) for delta in deltas] == [Thought, Text, CallStarted, Text, Finished]


def test_nothing_of_a_job_without_an_answer_is_watched() -> None:
    def emit(deltas: list[Delta]) -> None:
        """Takes nothing."""

    assert watched(structs.replace(stopping("a"), generate=False), emit) is emit
    assert watched(structs.replace(stopping("a"), is_summary=True), emit) is emit


def logprob(token: str) -> Logprob:
    return Logprob(token, -0.5, list(token.encode()), [])


def test_log_probabilities_stay_with_their_text() -> None:
    pieces = [Text("one", [logprob("one")]), Text(" tEN", [logprob(" t"), logprob("EN")])]
    deltas = passed(stopping("END"), [pieces[0]], [pieces[1]], [Text("D", [logprob("D")]), ended()])
    assert [(each.text, [p.token for p in each.logprobs]) for each in deltas if isinstance(each, Text)] == [
        ("one", ["one"]),
        (" t", [" t"]),
    ]


@given(
    text=st.text("ab#", max_size=30),
    sequences=st.lists(st.text("ab#", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    cuts=st.lists(st.integers(0, 30)),
)
def test_the_pieces_of_a_text_do_not_matter(text: str, sequences: list[str], cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    batches: list[list[Delta]] = [[Text(piece)] for piece in pieces]
    deltas = passed(stopping(*sequences), *batches, [ended()])
    # The sequence that is complete first counts, as a reader of single characters would see it.
    expected, found = text, None
    for end in range(len(text) + 1):
        complete = [each for each in sequences if text[:end].endswith(each)]
        if complete:
            found = max(complete, key=len)
            expected = text[: end - len(found)]
            break
    assert text_of(deltas) == expected
    last = deltas[-1]
    assert isinstance(last, Finished)
    assert last.stop_sequence == found


async def test_a_response_names_the_sequence_that_ended_it() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=40,tool_calls=0") as server:
        _, whole = await server.post(input="hello", store=False)
        text = whole["output"][0]["content"][0]["text"]
        word = text.split()[3]
        _, cut = await server.post(input="hello", store=False, stop=[word, "never"])
        assert cut["output"][0]["content"][0]["text"] == text[: text.index(word)]
        assert (cut["status"], cut["stop_sequence"]) == ("completed", word)
        assert "stop_sequence" not in whole
