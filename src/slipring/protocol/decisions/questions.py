"""A question as a model reads it, and its answer as the model's most likely tokens give it.

The options of a question have labels that begin with different letters. The model is asked for one of them,
and the probabilities of the first token of its answer are those of the options.
"""

import re
from string import ascii_uppercase

from msgspec import Raw, Struct

from slipring.protocol import wire
from slipring.protocol.decisions.requests import (
    Asked,
    ChoiceQuestion,
    Part,
    PredicateQuestion,
    QuestionImage,
    QuestionJson,
    json_text,
)

INSTRUCTIONS = (
    "You are asked questions about the input that follows. Judge each question by the input alone, and "
    "answer with one of its labels and nothing else."
)
_YES_NO = ("Yes", "No")
_BY_LETTER = "Answer with the letter of one of them, and nothing else."


class Question(Struct, frozen=True):
    """A question with the labels of its options."""

    asked: Asked
    labels: tuple[str, ...]
    content: Raw
    """The content of the message that asks it."""

    @property
    def pattern(self) -> str:
        """What an answer has to match."""
        return "|".join(map(re.escape, self.labels))

    def message(self) -> Raw:
        """The ``input`` of the turn that asks it."""
        return wire.raw([{"type": "message", "role": "user", "content": self.content}])


def question_of(asked: Asked, where: str) -> Question:
    """A question of a request; ``where`` is its place there."""
    if isinstance(asked, PredicateQuestion):
        rest = "Is this true of the input? Answer Yes or No, and nothing else."
        return Question(asked, _YES_NO, _content(asked.instructions, rest, where))
    if isinstance(asked, ChoiceQuestion):
        named = [(_named(each.value), each.description) for each in asked.choices]
        lead = "The options are:"
    else:
        named = [(each.label, each.description) for each in asked.levels]
        lead = "The levels are, from the lowest to the highest:"
    labels = tuple(ascii_uppercase[: len(named)])
    lines = [
        f"{label}. {name}: {description}" if description else f"{label}. {name}"
        for label, (name, description) in zip(labels, named, strict=True)
    ]
    rest = "\n".join((lead, *lines, _BY_LETTER))
    return Question(asked, labels, _content(asked.instructions, rest, where))


def _named(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _content(instructions: str | list[Part], rest: str, where: str) -> Raw:
    if isinstance(instructions, str):
        return wire.raw(f"{instructions}\n\n{rest}")
    parts = [_written(part, f"{where}.instructions[{index}]") for index, part in enumerate(instructions)]
    return wire.raw([*parts, {"type": "input_text", "text": rest}])


def _written(part: Part, where: str) -> dict[str, str]:
    if isinstance(part, QuestionImage):
        return {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}
    text = json_text(part.data, f"{where}.data") if isinstance(part, QuestionJson) else part.text
    return {"type": "input_text", "text": text}
