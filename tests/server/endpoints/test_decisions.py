"""Questions about one input: forks of one context, read from the most likely tokens of a model."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.decision import Decision

from slipring.config.tables import CheckEntry
from slipring.core.generation import (
    Accepted,
    Capabilities,
    Emit,
    Finished,
    Job,
    RefusalText,
    Text,
    Thought,
    deliver,
)
from slipring.core.limits import Limits
from slipring.protocol.responses import Logprob, TopLogprob
from tests import wire
from tests.harness import PuppetEngine, Running, serve

Json = dict[str, Any]
LATE = {"type": "predicate", "name": "late", "instructions": "The parcel is late."}
TEAM = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team is it for?",
    "choices": [{"value": "billing", "description": "Money"}, {"value": True}, {"value": "true"}],
}
ANGER = {
    "type": "score",
    "instructions": [
        {"type": "input_text", "text": "How angry?"},
        {"type": "input_json", "data": {"scale": "of a teacher"}},
    ],
    "levels": [{"label": "calm"}, {"label": "cross"}, {"label": "furious", "description": "Shouts."}],
}


def likely(**tokens: float) -> Text:
    """An answer whose first token has these probabilities. The first is chosen; `_` stands for a space."""
    named = {name.replace("_", " "): math.log(value) for name, value in tokens.items()}
    chosen, *_ = named
    tops = [TopLogprob(name, value, []) for name, value in named.items()]
    return Text(chosen, [Logprob(chosen, named[chosen], [], tops)])


class Oracle(PuppetEngine):
    """Answers each question as the test says, by its text."""

    def __init__(self, answer: Callable[[str], Any], *, logprobs: bool = True) -> None:
        super().__init__(Capabilities(logprobs=logprobs))
        self._answer = answer
        self.jobs: list[Job] = []

    async def generate(self, job: Job, emit: Emit) -> None:
        self.jobs.append(job)
        await deliver(emit, [Accepted()])
        if not job.generate:
            await deliver(emit, [Finished("stop", 100, 40, 0)])
            return
        said = self._answer(bytes(job.input[-1].raw).decode())
        await deliver(emit, [*said, Finished("stop", 110, 100, 1)])


async def ask(server: Running, *questions: Json, status: int = 200, **fields: Any) -> Json:
    body = {"model": "puppet", "input": "Where is my parcel?", "questions": questions, **fields}
    async with server.http.post(f"{server.url}/decisions", json=body) as answer:
        found: Json = await answer.json()
        assert answer.status == status, found
    if status == 200:
        wire.validate(Decision, found)
    return found


def letters(text: str) -> list[Text]:
    if "late" in text:
        return [likely(Yes=0.6, yes=0.2, No=0.1, The=0.1)]
    return [likely(B=0.5, _C=0.25, A=0.25)]


async def test_each_kind_of_question_is_answered_with_probabilities() -> None:
    engine = Oracle(letters)
    async with serve(engine) as server:
        found = await ask(server, LATE, TEAM, ANGER)
    late, team, anger = found["answers"]
    assert late == {"type": "predicate", "name": "late", "probability": pytest.approx(8 / 9)}
    assert (team["choice"], team["confidence"]) == (True, 0.5)
    assert [(each["value"], each["probability"]) for each in team["probabilities"]] == [
        ("billing", 0.25),
        (True, 0.5),
        ("true", 0.25),
    ]
    assert (anger["name"], anger["score"], anger["confidence"]) == (None, 1.0, 0.5)
    assert [(each["value"], each["label"]) for each in anger["probabilities"]] == [
        (0, "calm"),
        (1, "cross"),
        (2, "furious"),
    ]
    assert found["model"] == "puppet"
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (130, 3, 133)
    assert usage["input_tokens_details"] == {"cached_tokens": 40, "cache_write_tokens": 90}


async def test_the_input_is_processed_once_and_each_question_continues_it() -> None:
    engine = Oracle(letters)
    async with serve(engine, limits=Limits(max_lanes=3)) as server:
        found = await ask(server, *({**LATE, "name": str(number)} for number in range(10)))
    assert [each["name"] for each in found["answers"]] == [str(number) for number in range(10)]
    first, *questions = engine.jobs
    assert not first.generate
    assert len(questions) == 10
    assert all(job.parent is not None and job.parent.id == first.response_id for job in questions)
    assert all(job.fork for job in questions)
    settings = questions[0].settings
    assert (settings.pattern, settings.top_logprobs, settings.effort) == ("Yes|No", 20, "none")
    assert first.settings.pattern is None


async def test_the_input_may_be_a_conversation_with_json_and_calls() -> None:
    engine = Oracle(letters)
    history = [
        {"role": "developer", "content": "A shop."},
        {"role": "user", "content": [{"type": "input_json", "data": [{"parcel": 7, "days": [1, 2]}]}]},
        {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "lost"},
        {"role": "assistant", "content": "It is lost."},
    ]
    async with serve(engine) as server:
        await ask(server, LATE, input=history)
    read = [json.loads(item.raw) for item in engine.jobs[0].input]
    assert [item.get("type", "message") for item in read] == [
        *("message", "message", "function_call", "function_call_output", "message")
    ]
    assert read[1]["content"] == [{"type": "input_text", "text": '[{"parcel":7,"days":[1,2]}]'}]


async def test_a_refusal_and_an_answer_without_a_label_are_refusals_of_their_question() -> None:
    def answer(text: str) -> list[Any]:
        if "angry" in text:
            return [RefusalText("No.")]
        return letters(text) if "late" in text else [likely(The=0.9, An=0.1)]

    async with serve(Oracle(answer)) as server:
        found = await ask(server, LATE, TEAM, ANGER)
    assert [each["type"] for each in found["answers"]] == ["predicate", "refusal", "refusal"]
    assert found["answers"][1] == {"type": "refusal", "name": "team"}


async def test_a_model_that_only_thinks_is_an_error_and_no_refusal() -> None:
    async with serve(Oracle(lambda text: [Thought("Hm.")])) as server:
        error = (await ask(server, LATE, TEAM, status=400))["error"]
    assert error["param"] == "model"


async def test_a_model_without_logprobs_cannot_decide() -> None:
    async with serve(Oracle(letters, logprobs=False)) as server:
        error = (await ask(server, LATE, status=400))["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "model")


async def test_a_failed_question_fails_the_request() -> None:
    def answer(text: str) -> list[Any]:
        raise RuntimeError("out of memory")

    async with serve(Oracle(answer)) as server:
        assert (await ask(server, LATE, TEAM, status=500))["error"]["code"] == "server_error"


async def test_a_safety_check_refuses_the_input_as_a_whole_and_a_question_alone() -> None:
    check = CheckEntry("words", "patterns", '{"patterns":{"violence":"bomb"}}', action="block")
    async with serve(Oracle(letters), checks=(check,)) as server:
        blocked = await ask(server, LATE, input="It is a bomb.", status=400)
        assert blocked["error"]["code"] == "invalid_prompt"
        found = await ask(server, LATE, {**TEAM, "instructions": "Is it a bomb?"}, ANGER)
    assert [each["type"] for each in found["answers"]] == ["predicate", "refusal", "score"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"questions": []}, "questions", "invalid_value"),
        ({"questions": [LATE] * 401}, "questions", "invalid_value"),
        ({"questions": [{**LATE, "instructions": "x" * 2000}] * 401}, "questions", "invalid_value"),
        ({"questions": [{"type": "guess"}]}, "questions[0].type", "invalid_value"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "missing_required_parameter"),
        (
            {"questions": [LATE, {**TEAM, "choices": [{"value": "a"}]}]},
            "questions[1].choices",
            "invalid_value",
        ),
        ({"questions": [{**TEAM, "choices": [{"value": "a"}] * 2}]}, "questions[0].choices", "invalid_value"),
        ({"questions": [{**ANGER, "levels": [{"label": "a"}] * 21}]}, "questions[0].levels", "invalid_value"),
        (
            {"questions": [{**LATE, "instructions": [{"type": "input_json", "data": 5}]}]},
            "questions[0].instructions[0].data",
            "invalid_type",
        ),
        ({"input": [{"type": "reasoning"}]}, "input[0].type", "invalid_value"),
        ({"input": [{"role": "user", "content": 5, "x": "input_json"}]}, "input[0].content", "invalid_type"),
        (
            {"questions": [LATE, {**LATE, "instructions": " "}]},
            "questions[1].instructions",
            "missing_required_parameter",
        ),
        (
            {"questions": [{**LATE, "instructions": []}]},
            "questions[0].instructions",
            "missing_required_parameter",
        ),
        (
            {"questions": [{**TEAM, "choices": [{"value": "a"}, {"value": ""}]}]},
            "questions[0].choices[1].value",
            "invalid_value",
        ),
        (
            {"questions": [{**ANGER, "levels": [{"label": " "}, {"label": "a"}]}]},
            "questions[0].levels[0].label",
            "invalid_value",
        ),
        ({"questions": [{**ANGER, "levels": [{"label": "a"}] * 2}]}, "questions[0].levels", "invalid_value"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]},
            "input",
            "invalid_value",
        ),
        ({"input": []}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "missing_required_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": [0] * 10_001}}]}]},
            "input[0].content[0].data",
            "invalid_value",
        ),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)
async def test_bad_input_names_its_field(fields: Json, param: str, code: str) -> None:
    async with serve(Oracle(letters)) as server:
        body = {"model": "puppet", "input": "x", "questions": [LATE], **fields}
        async with server.http.post(f"{server.url}/decisions", json=body) as answer:
            error = (await answer.json())["error"]
    assert (error["param"], error["code"]) == (param, code)


async def test_the_openai_client_reads_the_answers() -> None:
    asked: Any = [LATE, TEAM]
    async with serve(Oracle(letters)) as server, AsyncOpenAI(base_url=server.url, api_key="none") as client:
        found = await client.decisions.create(model="puppet", input="Where is it?", questions=asked)
    assert [each.type for each in found.answers] == ["predicate", "choice"]
