"""The body of a decision: an answer to each question, and the usage of all."""

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from slipring.protocol.decisions.requests import Asked, ChoiceQuestion, PredicateQuestion
from slipring.protocol.responses import Logprob, Response, Usage


class PredicateAnswer(Struct, tag_field="type", tag="predicate"):
    name: str | None
    probability: float


class OptionProbability(Struct):
    value: str | bool
    probability: float


class ChoiceAnswer(Struct, tag_field="type", tag="choice"):
    name: str | None
    choice: str | bool
    confidence: float
    """The probability of ``choice``."""
    probabilities: list[OptionProbability]


class LevelProbability(Struct):
    value: int
    """The index of the level."""
    label: str
    probability: float


class ScoreAnswer(Struct, tag_field="type", tag="score"):
    name: str | None
    score: float
    """The expected index."""
    confidence: float
    """The probability of the most likely level."""
    probabilities: list[LevelProbability]


class RefusalAnswer(Struct, tag_field="type", tag="refusal"):
    """The model has not answered with one of the labels, or a safety check has blocked the question."""

    name: str | None


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer


class Decision(Struct):
    model: str
    answers: list[Answer]
    usage: Usage


class _Part(Struct):
    type: str
    text: str = ""
    logprobs: list[Logprob] = []


class _Output(Struct):
    type: str
    content: list[_Part] = []


_output = msgspec.json.Decoder(_Output)


def has_answer(response: Response) -> bool:
    """Whether a model has begun an answer, or refused one, instead of writing thoughts alone."""
    return any(part.type in ("output_text", "refusal") for part in _parts(response))


def _parts(response: Response) -> list[_Part]:
    return [part for raw in response.output for part in _output.decode(raw).content]


def probabilities(labels: Sequence[str], logprobs: Sequence[Logprob]) -> list[float] | None:
    """The probabilities of labels, by the first token of an answer that is not white space; None if that is
    none of them. A label that is not among the most likely tokens has none."""
    first = next((each for each in logprobs if each.token.strip()), None)
    if first is None:
        return None
    likely = {first.token: first.logprob} | {each.token: each.logprob for each in first.top_logprobs}
    weights = dict.fromkeys(labels, 0.0)
    for token, logprob in likely.items():
        if (label := _label(labels, token.strip())) is not None:
            weights[label] += math.exp(min(logprob, 0.0))
    total = sum(weights.values())
    return [weight / total for weight in weights.values()] if total else None


def _label(labels: Sequence[str], token: str) -> str | None:
    """The label that a token is, or that only it begins with: some vocabularies split words."""
    fitting = [label for label in labels if token and label.lower().startswith(token.lower())]
    return fitting[0] if len(fitting) == 1 else None


def answer_to(asked: Asked, labels: Sequence[str], response: Response) -> Answer:
    """The answer that a response has given to a question with these labels."""
    found = probabilities(labels, [each for part in _parts(response) for each in part.logprobs])
    if found is None:
        return RefusalAnswer(asked.name)
    if isinstance(asked, PredicateQuestion):
        return PredicateAnswer(asked.name, found[0])
    best = max(range(len(found)), key=found.__getitem__)
    if isinstance(asked, ChoiceQuestion):
        options = [
            OptionProbability(option.value, probability)
            for option, probability in zip(asked.choices, found, strict=True)
        ]
        return ChoiceAnswer(asked.name, asked.choices[best].value, found[best], options)
    levels = [
        LevelProbability(index, level.label, probability)
        for index, (level, probability) in enumerate(zip(asked.levels, found, strict=True))
    ]
    expected = sum(each.value * each.probability for each in levels)
    return ScoreAnswer(asked.name, expected, found[best], levels)
