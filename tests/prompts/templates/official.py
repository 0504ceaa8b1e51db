"""Examines the official chat templates of a directory: ``python -m tests.prompts.templates.official DIR``.

For each template: the format that is found, whether the first prompt is written, whether tool loops and
users' turns are appended, whether what is appended is what the template writes for the whole conversation,
which tokens end answers, and whether answers in the format are read as what was written.
"""

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from msgspec import Struct

from slipring.commands.inspection.sample_conversation import (
    CALL,
    SECOND_CALL,
    Answer,
    AnsweredTurn,
    Refusal,
    Turn,
    control_names,
    converse,
    output,
    read_back,
    same_arguments,
    spell,
    user,
)
from slipring.core.generation import Settings
from slipring.prompts.parsing.answer_writer import Call
from slipring.prompts.templates.jinja_engines import TemplateError
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.templates.family_templates import control_tokens_of
from tests.prompts.vocabulary import small_metadata

_BOS, _EOS = "<s>", "</s>"
_KNOWN_EOS = ("<｜end▁of▁sentence｜>",)
"""Tokens that end answers wherever a template writes them."""
UNUSABLE = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "needs a description of each parameter",
    "fireworks-ai-llama-3-firefunction-v2": "reads the tools from a variable of its own",
    "meetkai-functionary-medium-v3.2": "its calls are names without marks before them",
}
"""Templates that are known not to work, and why."""
_FORMS = ("loop", "thoughts", "parallel", "text turn", "thought turn")


class Examined(Struct, kw_only=True):
    """What was found out about a template."""

    name: str
    format: str = ""
    stops: tuple[str, ...] = ()
    appended: dict[str, str] = {}
    """For each conversation: ``yes``, or why it is rendered in full."""
    faults: list[str] = []


def examine(path: Path) -> Examined:
    source = path.read_text()
    try:
        renderer = renderer_of(source)
    except TemplateError as error:
        return Examined(name=path.stem, faults=[str(error)])
    detected = renderer.detected
    names = control_names(renderer.vocabulary)
    stops = tuple(sorted(names[id] for id in renderer.stop_ids()))
    examined = Examined(name=path.stem, format=detected.found, stops=stops, appended={}, faults=[])
    if (
        detected.writes_calls
        and renderer.output_format.calls is None
        and not renderer.output_format.is_harmony
    ):
        examined.faults.append("calls are written in a form that is not known")
    for form, turns in zip(_FORMS, _conversations(renderer), strict=True):
        if turns:
            _converse(renderer, form, turns, examined)
    if not stops:
        examined.faults.append("no token ends answers")
    return examined


def renderer_of(source: str, today: date = date(2026, 1, 2)) -> TemplateRenderer:
    """A renderer over a small vocabulary with the control tokens that the template shows."""
    metadata = small_metadata()
    types = metadata["tokenizer.ggml.token_type"]
    words = [word for word, type in zip(metadata["tokenizer.ggml.tokens"], types, strict=True) if type == 1]
    eos = next((name for name in _KNOWN_EOS if name in source), _EOS)
    controls = sorted({*control_tokens_of(source), _BOS, eos} - {*words})
    tokens = {
        "tokenizer.ggml.tokens": [*words, *controls],
        "tokenizer.ggml.token_type": [*(1 for _ in words), *(3 for _ in controls)],
    }
    model = ModelTemplate(source=source, bos_token=_BOS, eos_token=eos)
    vocabulary = Tokenizer.from_gguf({**metadata, **tokens})
    return TemplateRenderer(model, vocabulary, today=today)


def _conversations(renderer: TemplateRenderer) -> Sequence[Sequence[Turn]]:
    """Tool loops without and with thoughts and with two calls, users' turns after text and thoughts."""
    has_thoughts = bool(renderer.output_format.think_close) or renderer.output_format.is_harmony
    several = renderer.forms.several_calls and not renderer.output_format.is_harmony
    question, more = user("What is the weather in Rome?"), user("And in Oslo?")

    def loop(thoughts: str, calls: tuple[Call, ...]) -> list[Turn]:
        outputs = tuple(item for call in calls for item in output(call))
        again = Call(CALL.name, CALL.values, index=len(calls))
        return [
            Turn(question, Answer(thoughts, "", calls)),
            Turn(outputs, Answer(thoughts, "", (again,))),
            Turn(output(again), Answer(thoughts, "It is sunny.")),
        ]

    return (
        loop("", (CALL,)),
        loop("I need a tool.", (CALL,)) if has_thoughts else (),
        loop("", (CALL, SECOND_CALL)) if several else (),
        [Turn(question, Answer("", "It is sunny.")), Turn(more, Answer("", "Grey."))],
        [Turn(question, Answer("Easy.", "It is sunny.")), Turn(more, Answer("Hm.", "Grey."))]
        if has_thoughts
        else (),
    )


def _converse(renderer: TemplateRenderer, form: str, turns: Sequence[Turn], examined: Examined) -> None:
    try:
        steps = list(converse(renderer, turns, Settings(effort=_effort(renderer, turns))))
    except (Refusal, ValueError) as refusal:
        examined.faults.append(f"{form}: {refusal}")
        return
    reasons = [step.rendering.fallback for step in steps[1:]]
    examined.appended[form] = next(filter(None, reasons), "yes")
    for step, turn in zip(steps, turns, strict=True):
        _read(renderer, form, step, turn.answer, examined)
    if examined.appended[form] == "yes" and not _is_template(renderer, steps[-1]):
        examined.appended[form] = "yes, not as the template"


def _effort(renderer: TemplateRenderer, turns: Sequence[Turn]) -> str | None:
    """The effort with which a model thinks, or does not; None where that is its default."""
    switches = renderer.detected.thinking
    if any(turn.answer.thoughts for turn in turns):
        return "high" if switches.thinks_by_default is False else None
    return "none" if switches.can_be_off else None


def _read(
    renderer: TemplateRenderer, form: str, step: AnsweredTurn, answer: Answer, examined: Examined
) -> None:
    """An answer in the format must be read as what was written."""
    read = read_back(renderer, step)
    calls_match = len(read.calls) == len(answer.calls) and all(
        name == call.name and same_arguments(call, arguments)
        for call, (name, arguments) in zip(answer.calls, read.calls, strict=True)
    )
    if not calls_match or read.text.strip() != answer.text or read.thoughts.strip() != answer.thoughts:
        examined.faults.append(f"{form}: {step.emission.text!r} is read as {read}")


def _is_template(renderer: TemplateRenderer, step: AnsweredTurn) -> bool:
    """Whether a prompt that was appended is the one of the whole conversation, but for white space and marks
    of thoughts."""
    items = tuple(step.job.context())
    whole = renderer.open(
        renderer.start(step.job.head, step.job.settings, items, BudgetedEncoder(renderer.vocabulary))
    )
    texts = (spell(renderer.vocabulary, each.ids()) for each in (whole, step.rendering.prompt))
    return len({_without_marks(renderer, text) for text in texts}) == 1


def _without_marks(renderer: TemplateRenderer, text: str) -> str:
    for mark in (renderer.output_format.think_open, renderer.output_format.think_close):
        if mark := mark.strip():
            text = text.replace(mark, "")
    return "".join(text.split())


def main() -> int:
    faults = 0
    print(f"{'template':50} {'loop':5}{'think':6}{'two':5}{'text turn':10}{'thought turn'}")
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        examined = examine(path)
        marks = [_mark(examined.appended.get(form, "-")) for form in _FORMS]
        print(
            f"{path.stem[:49]:50} {marks[0]:5}{marks[1]:6}{marks[2]:5}{marks[3]:10}{marks[4]:13}",
            examined.format,
        )
        for reason in sorted({*examined.appended.values()} - {"yes"}):
            print(
                f"    {', '.join(form for form in _FORMS if examined.appended.get(form) == reason)}: {reason}"
            )
        known = UNUSABLE.get(path.stem)
        for fault in examined.faults:
            print(f"    {'FAULT' if known is None else f'does not work ({known})'}: {fault}")
        faults += len(examined.faults) if known is None else 0
    print("yes: appended; yes*: appended, but the template writes the whole conversation differently")
    return 1 if faults else 0


def _mark(appended: str) -> str:
    return {"yes": "yes", "-": "-", "yes, not as the template": "yes*"}.get(appended, "full")


if __name__ == "__main__":
    sys.exit(main())
