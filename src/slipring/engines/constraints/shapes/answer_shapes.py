"""Shapes of whole answers: a thought, and then text, calls or a document."""

from typing import Final

from slipring.engines.constraints.answer_form import Form
from slipring.engines.constraints.shapes.call_shapes import CallShapes, json_arguments
from slipring.engines.constraints.shapes.shape import (
    SPACE,
    FreeText,
    Json,
    Mark,
    Optional,
    Pattern,
    Shape,
    TextOrCalls,
    TextUntil,
    TextWithCalls,
    choice,
    sequence,
)
from slipring.prompts.parsing.output_format import HARMONY_MARKS

_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _, _ = HARMONY_MARKS
_NEXT: Final = f"{_START}assistant"


def answer_shape(form: Form, *, loops: bool) -> Shape:
    """The shape of an answer: required calls, a document, or text with calls.

    ``loops``: whether text and calls may alternate; otherwise calls end the answer.
    """
    if form.output.is_harmony:
        return _harmony_answer(form)
    output = form.output
    if form.required or form.is_free_text:
        assert output.calls is not None
        calls = CallShapes(output.calls, form.tools, form.max_calls)
        if form.required:
            return sequence(_thought(form), calls.all(), _ignored_marks(form))
        triggers = calls.after_marks(alone=loops)
        if not triggers:
            return sequence(_thought(form), TextOrCalls(calls.all()))
        is_repeated = loops and form.max_calls > 1
        text = TextWithCalls(tuple(triggers), is_repeated, output.ignored)
        return sequence(_thought(form), text, _ignored_marks(form) if not loops else sequence())
    ignored = _ignored_marks(form)
    opening = Mark(output.text_open.lstrip()) if output.text_open else ignored
    return sequence(_thought(form), opening, _document(form), Mark(output.text_close), ignored)


def _document(form: Form) -> Shape:
    """The text of an answer that is not free: a JSON document, or text that matches a pattern."""
    if form.pattern is not None:
        return Pattern(form.pattern)
    assert form.document is not None
    return Json(form.document, form.strict, "text.format.schema")


def _ignored_marks(form: Form) -> Shape:
    """Marks without content that a model may write before and after what is enforced."""
    if not form.output.ignored:
        return sequence()
    mark = Optional(choice([Mark(each.strip()) for each in form.output.ignored]))
    return sequence(mark, mark)


def _thought(form: Form) -> Shape:
    """The thought before an answer, and the white space after it."""
    opening, closing = form.output.think_open.rstrip().lstrip("\n"), form.output.think_close.strip()
    if form.after_thought:
        return SPACE
    if not form.thinks or not closing:
        return sequence()
    thought = sequence(TextUntil(closing), SPACE)
    return thought if form.opens_thought else Optional(sequence(Mark(opening), thought))


def _harmony_answer(form: Form) -> Shape:
    """Messages of thought, and then a message to a tool or to the user."""
    thought = sequence(TextUntil(_END), Mark(_NEXT))
    parts: list[Shape] = []
    if form.opens_thought:
        parts.append(thought)
    elif form.thinks and not form.after_thought:
        parts.append(Optional(sequence(Mark(f"{_CHANNEL}analysis{_MESSAGE}"), thought)))
    if not form.required and form.pattern is not None:
        return sequence(*parts, Mark(f"{_CHANNEL}final{_MESSAGE}"), _document(form))
    if not form.required and form.document is not None:
        header = choice([Mark(_MESSAGE), Mark(f" {_CONSTRAIN}json{_MESSAGE}")])
        return sequence(*parts, Mark(f"{_CHANNEL}final"), header, _document(form))
    commentary = Mark(f"{_CHANNEL}commentary{_MESSAGE}")
    parts.append(Optional(sequence(commentary, TextUntil(_END), Mark(_NEXT))))
    options: list[Shape] = []
    for number, tool in enumerate(form.tools):
        headers = choice(
            [
                Mark(f"{_CHANNEL}commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}"),
                Mark(f" to=functions.{tool.name}{_CHANNEL}commentary json{_MESSAGE}"),
                Mark(f" to=functions.{tool.name}{_CHANNEL}commentary {_CONSTRAIN}json{_MESSAGE}"),
            ]
        )
        options.append(sequence(headers, json_arguments(tool, number)))
    if not form.required:
        options.append(sequence(Mark(f"{_CHANNEL}final{_MESSAGE}"), FreeText()))
    return sequence(*parts, choice(options))
