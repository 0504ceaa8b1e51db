"""Decisions of a model in this process: probabilities of its own first tokens."""

from typing import Any

import pytest
from openai.types.decision import Decision

from tests import wire
from tests.model import ServeModel

QUESTIONS = [
    {"type": "predicate", "name": "sea", "instructions": "The text is about the sea."},
    {
        "type": "choice",
        "name": "kind",
        "instructions": "What is it?",
        "choices": [{"value": "a poem"}, {"value": "a letter"}, {"value": "a recipe"}],
    },
    {
        "type": "score",
        "name": "mood",
        "instructions": "How cheerful is it?",
        "levels": [{"label": "sad"}, {"label": "calm"}, {"label": "merry"}],
    },
]
TEXT = "The waves came in and the boats went out, and the gulls were loud above the harbour. "


async def test_questions_are_forks_of_one_context(smollm2: ServeModel) -> None:
    async with smollm2(slots=2) as server:
        body: dict[str, Any] = {"input": TEXT, "questions": QUESTIONS}
        found = []
        for _ in range(2):
            async with server.http.post(f"{server.url}/decisions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                found.append(await answer.json())
    first, second = found
    wire.validate(Decision, first)
    sea, kind, mood = first["answers"]
    assert 0 < sea["probability"] < 1
    for answer_ in (kind, mood):
        chances = [each["probability"] for each in answer_["probabilities"]]
        assert sum(chances) == pytest.approx(1)
        assert answer_["confidence"] == max(chances) < 1
    again = [answer_.get("probability", answer_.get("confidence")) for answer_ in second["answers"]]
    before = [answer_.get("probability", answer_.get("confidence")) for answer_ in first["answers"]]
    assert again == pytest.approx(before, abs=0.1)
    usage = second["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert cached, "the input is in the cache"
