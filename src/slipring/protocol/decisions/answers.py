"""The body of a decision: an answer to each question, and the usage of all."""

from msgspec import Struct

from slipring.protocol.responses import Usage


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
