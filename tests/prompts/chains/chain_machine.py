"""Compares three readings of one history: the chain that was appended turn by turn, the rendering of all its
items, and what Jinja2 writes for the same messages.

The model emits exactly what its template writes for its answers, as far as that continues the prompt: then a
chain and a whole rendering have no reason to differ.
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import jinja2
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidRequest
from slipring.commands.inspection.sample_conversation import Answer as WrittenAnswer
from slipring.commands.inspection.sample_conversation import control_names, emit, spell
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Settings
from slipring.prompts.parsing.answer_writer import Call as WrittenCall
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.rendering import (
    CALL_IDS,
    CALL_TEXTS,
    EMPTY_THOUGHTS,
    LOOP_THOUGHTS,
    WHITE_SPACE,
    ChainChoice,
    Rendering,
)
from slipring.prompts.templates.chat_messages import ChatMessage, head_messages
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tool_definitions import declare_tools, template_tools, tool_instructions
from slipring.protocol.items.items import Item, short_id
from slipring.protocol.tools.toolset import Toolset
from tests.prompts.chains.histories import Answer, History, Input, Start
from tests.prompts.templates.family_templates import render_with_jinja2
from tests.prompts.test_rendering import after, job
from tests.prompts.vocabulary import item, message

TOOLS = Toolset.read(
    Raw(
        json.dumps(
            [
                {
                    "type": "function",
                    "name": "get_weather",
                    "description": "Tells the weather.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                        "required": ["city"],
                    },
                },
                {
                    "type": "function",
                    "name": "search",
                    "description": "Searches.",
                    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                },
            ]
        ).encode()
    )
)


_THOUGHT, _OLD_THOUGHT, _TEXT = "Let me see.", "An old idea.", "It rains."
_SPOKEN = (
    *(
        "What is the weather?",
        "And then?",
        "And now?",
        "Wait.",
        "Go on.",
        "Rather tomorrow.",
        "Next.",
        "Faster.",
    ),
    *("Be polite.", "Be kind.", "Be quick.", "Be brief."),
)
"""What users and developers say."""
_CONTENTS = (_THOUGHT, _TEXT, "Rome", "Oslo", "days", '"query', "rain")


_CALL_ID = re.compile(r',\s*"id":\s*"\w{9}"')


class _ThoughtMarks:
    """Finds thoughts without content in what a template writes."""

    def __init__(self, format: OutputFormat) -> None:
        self._opening, self.closing = format.think_open.strip(), format.think_close.strip()
        opening, closing = re.escape(self._opening), re.escape(self.closing)
        inner = f"(?:(?!{closing}|{re.escape(_THOUGHT)}|{re.escape(_OLD_THOUGHT)}).)*" if closing else ""
        empty = f"(?:{opening}{inner})?{closing}" if opening else closing
        self.at_end = re.compile(rf"(?:{empty}|{opening or closing})\s*\Z", re.DOTALL)
        self.at_start = re.compile(rf"\A{empty}\s*", re.DOTALL)
        self._empty = re.compile(rf"{empty}\s*", re.DOTALL)
        full = f"(?:{re.escape(_THOUGHT)}|{re.escape(_OLD_THOUGHT)})"
        self._full = re.compile(rf"(?:{opening})?\s*{full}\s*{closing}\s*", re.DOTALL)

    def opens(self, prompt: str) -> bool:
        return bool(self._opening) and prompt.rstrip().endswith(self._opening)

    def without(self, text: str, choices: Sequence[ChainChoice]) -> str:
        """A context without what the choices say that a chain may keep, or keep out."""
        if CALL_IDS in choices:
            text = _CALL_ID.sub("", text)
        if CALL_TEXTS in choices:
            text = text.replace(_TEXT, "")
        if LOOP_THOUGHTS in choices:
            spoken = max(text.rfind(each) + len(each) for each in _SPOKEN)
            text = text[:spoken] + "".join(self._full.sub("", text[spoken:]).split())
        if EMPTY_THOUGHTS in choices and self.closing:
            text = self._empty.sub("", text)
        return "".join(text.split()) if WHITE_SPACE in choices else text


class Difference(Struct, frozen=True):
    """Two readings of a context that differ. ``between``: which two."""

    between: str
    turn: int
    one: str
    other: str

    def __str__(self) -> str:
        start = max(0, self._at() - 60)
        one, other = (text[start : self._at() + 90] for text in (self.one, self.other))
        return f"{self.between}, turn {self.turn}:\n  …{one!r}\n  …{other!r}"

    def kind(self) -> str:
        """The same for differences of one kind."""
        one, other = (text[max(0, self._at() - 25) : self._at() + 14] for text in (self.one, self.other))
        return f"{self.between} {one} {other}"

    def _at(self) -> int:
        """Where they begin to differ."""
        pairs = enumerate(zip(self.one, self.other, strict=False))
        return next((at for at, (one, other) in pairs if one != other), min(len(self.one), len(self.other)))


class ChainMachine:
    """Plays a history with a renderer. ``choices``: what chains may keep, if not what the renderer names."""

    def __init__(
        self,
        renderer: TemplateRenderer,
        history: History,
        today: date,
        choices: Sequence[ChainChoice] | None = None,
    ) -> None:
        self._renderer = renderer
        self._choices = renderer.chain_choices if choices is None else choices
        if not any(turn.answer.has_text and turn.answer.calls for turn in history.turns):
            self._choices = [choice for choice in self._choices if choice != CALL_TEXTS]
        self._today = today
        self._marks = _ThoughtMarks(renderer.output_format)
        self._history = history
        instructions = "Be brief." if history.instructed else ""
        self._head = Head(instructions, TOOLS) if history.has_tools else Head(instructions)
        self._made = 0
        self._open: list[str] = []
        self.appended = self.in_full = 0

    def differences(self) -> Iterator[Difference]:
        """All differences. Ends where the template refuses the history."""
        parent: ResponseState | None = None
        for number, turn in enumerate(self._history.turns):
            items = self._start(self._history.start) if parent is None else self._input(turn.input)
            asked = self._job(items, parent, turn.effort)
            context = tuple(asked.context())
            try:
                whole = self._renderer.render(structs.replace(asked, parent=None, input=context))
                chained = self._renderer.render(asked)
            except InvalidRequest:
                return
            if chained.fallback is None and parent is not None:
                self.appended += 1
            elif parent is not None:
                self.in_full += 1
            if chained.prompt.ids() != whole.prompt.ids() and not self._may_differ(chained, whole):
                yield Difference("chain and whole", number, self._spell(chained), self._spell(whole))
            written = self._by_jinja2(asked, context)
            if written is not None and written != self._spell(whole):
                yield Difference("whole and Jinja2", number, self._spell(whole), written)
            emitted, answer = self._answer(asked, chained, turn.answer)
            parent = after(asked, chained.with_answer(emitted), output=answer)

    def _may_differ(self, chained: Rendering, whole: Rendering) -> bool:
        """Whether two prompts differ by nothing but what the renderer says that chains keep."""
        texts = (self._marks.without(self._spell(each), self._choices) for each in (chained, whole))
        return chained.fallback is None and len(set(texts)) == 1

    def _job(self, items: tuple[Item, ...], parent: ResponseState | None, effort: int) -> Job:
        efforts = (None, *self._renderer.efforts)
        settings = Settings(effort=efforts[effort % len(efforts)])
        return structs.replace(job(items, parent, self._head), settings=settings)

    def _start(self, start: Start) -> tuple[Item, ...]:
        user, developer = message("user", "What is the weather?"), message("developer", "Be polite.")
        match start:
            case "user":
                return (user,)
            case "developer and user":
                return (developer, user)
            case "developer":
                return (developer,)
            case "two systems":
                return (developer, message("system", "Be kind."), user)
            case "assistant":
                return (message("assistant", "Hello."), user)
            case "call":
                return (*self._calls("search"), *self._outputs())
            case "steered loop":
                return (user, *self._calls("get_weather"), *self._outputs(), message("user", "Faster."))
            case "broken call":
                broken = self._calls("get_weather", arguments='{"city": "Ro')
                return (user, *broken, *self._outputs(), message("user", "Wait."))
        return (
            user,
            item(
                "reasoning", id="rs", summary=[], content=[{"type": "reasoning_text", "text": _OLD_THOUGHT}]
            ),
            *self._calls("search", "get_weather"),
            *self._outputs(),
            message("assistant", "Grey."),
            message("user", "And now?"),
        )

    def _input(self, input: Input) -> tuple[Item, ...]:
        outputs = self._outputs()
        match input:
            case "user":
                return outputs or (message("user", "And then?"),)
            case "two users":
                return (*outputs, message("user", "Wait."), message("user", "Go on."))
            case "developer":
                return (*outputs, message("developer", "Be quick."))
            case "outputs and steer":
                return (*outputs, message("user", "Rather tomorrow."))
        return outputs or (message("user", "Next."),)

    def _calls(self, *names: str, arguments: str = "") -> tuple[Item, ...]:
        made = []
        for name in names:
            self._made += 1
            self._open.append(f"c{self._made}")
            text = arguments or ('{"query": "rain"}' if name == "search" else '{"city": "Rome"}')
            made.append(item("function_call", call_id=f"c{self._made}", name=name, arguments=text))
        return tuple(made)

    def _outputs(self) -> tuple[Item, ...]:
        outputs = tuple(
            item("function_call_output", call_id=id, output=f"{number} mm of rain")
            for number, id in enumerate(self._open, 1)
        )
        self._open.clear()
        return outputs

    def _answer(self, asked: Job, chained: Rendering, wanted: Answer) -> tuple[list[int], tuple[Item, ...]]:
        """The ids that the model emits, and the items that they are."""
        renderer = self._renderer
        format = renderer.output_format
        has_calls = format.calls is not None or format.is_harmony
        calls = wanted.calls if self._history.has_tools and has_calls else ()
        if not renderer.forms.several_calls or format.is_harmony:
            calls = calls[:1]
        thoughts = (
            _THOUGHT
            if self._may_think(asked, chained) and (wanted.thinks or renderer.opens_thought(chained.prompt))
            else ""
        )
        text = _TEXT if wanted.has_text or not calls else ""
        items: list[Item] = []
        if thoughts:
            content = [{"type": "reasoning_text", "text": thoughts}]
            items.append(item("reasoning", id="rs", summary=[], content=content))
        if text:
            items.append(message("assistant", text))
        written: list[WrittenCall] = []
        for call in calls:
            id = f"c{self._made + 1}"
            arguments = json.dumps(call.arguments)
            items.append(item("function_call", call_id=id, name=call.name, arguments=arguments))
            written.append(WrittenCall(call.name, call.arguments, index=self._made, id=short_id(id)))
            self._made += 1
            self._open.append(id)
        emitted = self._by_template(asked, tuple(items))
        if emitted is None:
            try:
                answer = WrittenAnswer(thoughts, text, tuple(written))
                emitted = emit(renderer, chained.prompt, answer).ids
            except ValueError:  # a call that cannot follow text
                text, items = "", [each for each in items if each.type != "message"]
                emitted = emit(renderer, chained.prompt, WrittenAnswer(thoughts, "", tuple(written))).ids
        return emitted, tuple(items)

    def _may_think(self, asked: Job, rendering: Rendering) -> bool:
        format, switches = self._renderer.output_format, self._renderer.detected.thinking
        if not (format.think_close or format.is_harmony):
            return False
        if self._renderer.opens_thought(rendering.prompt):
            return True
        if asked.settings.effort == "none" and switches.can_be_off:
            return False
        return not (asked.settings.effort is None and switches.thinks_by_default is False)

    def _by_template(self, asked: Job, answer: tuple[Item, ...]) -> list[int] | None:
        """What the template writes for an answer after the prompt, from where a thought without content that
        the prompt began or the template writes has ended; None if that does not continue the prompt."""
        context = tuple(asked.context())
        whole = self._messages(asked, (*context, *answer))
        draft = self._draft(asked, (*context, *answer))
        try:
            written, start = draft.write(whole), draft.write(self._messages(asked, context), prompt=True)
            if not written.startswith(start):
                # A template that begins otherwise if an answer is wanted: by what follows once it is there.
                asked_again = (*context, *answer, message("user", "Next."))
                again = self._draft(asked, asked_again).write(self._messages(asked, asked_again), prompt=True)
                written = again if again.startswith(start) else written
        except InvalidRequest:
            return None
        if written.startswith(start):
            rest = written[len(start) :]
        else:
            header = self._marks.at_end.sub("", start)
            if not self._marks.closing or not written.startswith(header):
                return None
            rest = self._marks.at_start.sub("", written[len(header) :])
            if self._marks.opens(start):
                thought = _THOUGHT if any(each.type == "reasoning" for each in answer) else ""
                told = rest.find(_THOUGHT) if thought else -1
                rest = (
                    rest[told:] if told >= 0 else f"{thought}{self._renderer.output_format.think_close}{rest}"
                )
        contents = [rest.rfind(content) + len(content) for content in _CONTENTS if content in rest]
        if not contents:  # a template that writes no answers
            return None
        last = max(contents)
        names = self._ends(any(each.call_id for each in answer))
        if any(name in rest[:last] for name in names):  # a template that writes an answer as several
            return None
        ends = [rest.find(name, last) for name in names]
        end = min((at for at in ends if at >= 0), default=len(rest))
        ids: list[int] = draft.ids(rest[:end])
        return ids

    def _ends(self, has_calls: bool) -> list[str]:
        """The tokens that may end an answer."""
        names = control_names(self._renderer.vocabulary)
        stops = [names[id] for id in self._renderer.stop_ids()]
        return [*filter(None, (self._renderer.probed.closers[has_calls],)), *stops]

    def _messages(self, asked: Job, context: tuple[Item, ...]) -> list[ChatMessage]:
        tools = asked.head.tools.callables
        described = tool_instructions(tools) if tools and not self._renderer.detected.writes_tools else ""
        head = head_messages(asked.head, asked.settings.format, described)
        return [*head, *self._renderer._builder({}, 0).add(context).messages]

    def _tools(self, asked: Job) -> list[dict[str, Any]]:
        writes_tools = self._renderer.detected.writes_tools
        return template_tools(asked.head.tools.callables) if writes_tools else []

    def _draft(self, asked: Job, context: tuple[Item, ...]) -> Any:
        encoder = BudgetedEncoder(self._renderer.vocabulary)
        messages = self._messages(asked, context)
        return self._renderer.probed.draft(messages, self._tools(asked), encoder, asked.settings.effort)

    def _by_jinja2(self, asked: Job, context: tuple[Item, ...]) -> str | None:
        """What Jinja2 writes for the messages of a context; None if slipring changes their form."""
        renderer = self._renderer
        messages = self._messages(asked, context)
        if list(renderer.forms.adapt(messages)) != messages:
            return None
        dicts = [each.as_dict(str, lambda value: value, renderer.probed._form.fields) for each in messages]
        model, variables = renderer.model, dict(renderer.probed.variables_of(asked.settings.effort))
        tools = self._tools(asked) or renderer.template._no_tools
        if "tools_ts_str" in model.source:
            variables["tools_ts_str"] = declare_tools(tools) if tools else None
        render = render_with_jinja2(
            model.source, bos_token=model.bos_token, eos_token=model.eos_token, today=self._today
        )
        try:
            return render(dicts, tools, add_generation_prompt=True, variables=variables)
        except jinja2.TemplateError:  # it refuses what slipring brings into another form
            return None

    def _spell(self, rendering: Rendering) -> str:
        return spell(self._renderer.vocabulary, rendering.prompt.ids())
