"""What a job requires of its answer, and the shape of such an answer in the format of the model.

The requirements are data for the sandbox: schemas and grammars come from clients, so the sandbox writes the
constraint. The shape is that of the whole answer: a thought, and then text, calls in the layout of the model,
or a document.
"""

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from slipring.base.errors import UnsupportedParameter
from slipring.engines.constraints.argument_shapes import (
    BracedValues,
    NestedTagValues,
    PythonValues,
    TaggedValues,
    escaped,
)
from slipring.engines.constraints.shape import (
    SPACE,
    FreeText,
    Input,
    Json,
    Mark,
    Optional,
    Pattern,
    Repeated,
    Shape,
    TextOrCalls,
    TextUntil,
    TextWithCalls,
    choice,
    sequence,
)
from slipring.prompts.parsing.calls.call_reader import OfferedTools
from slipring.prompts.parsing.calls.json_scanner import quoted
from slipring.prompts.parsing.output_format import (
    HARMONY_MARKS,
    BracedCalls,
    Calls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.prompts.parsing.output_parser import call_reader
from slipring.prompts.tool_definitions import flat_name, parameters_of
from slipring.protocol import wire
from slipring.protocol.tools.grammars_and_schemas import Grammar
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool, FunctionTool, Kind

if TYPE_CHECKING:  # the sandbox's process needs none of them
    from slipring.core.generation import Job
    from slipring.prompts.rendering import Renderer

ANY_OBJECT = b'{"type":"object"}'
_MAX_CALLS = 16
_INDEX: Final = Pattern("[0-9]{1,4}")
_ID: Final = Pattern("[A-Za-z0-9]{9}")
"""An id as Mistral's models write it."""
_LEADING_ID: Final = Pattern(r"[A-Za-z0-9_\-]{1,40}")
_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _, _ = HARMONY_MARKS
_NEXT: Final = f"{_START}assistant"


class CalledTool(Struct, frozen=True):
    """The parts of a tool that constrain calls of it."""

    name: str
    """The name that the model writes."""
    kind: Kind
    parameters: bytes
    strict: bool
    grammar: Grammar | None

    @classmethod
    def of(cls, tool: CallableTool) -> "CalledTool":
        strict = isinstance(tool.definition, FunctionTool) and tool.definition.strict is True
        return cls(flat_name(tool), tool.kind, bytes(parameters_of(tool)), strict, tool.grammar)


class Form(Struct, frozen=True):
    """The requirements on an answer."""

    output: OutputFormat
    tools: list[CalledTool]
    """The tools whose calls a constraint describes; empty if the format of calls is not known."""
    required: bool
    """Whether the answer must be a call. Takes precedence over ``document``."""
    document: bytes | None
    """The JSON schema of an answer that is not a call; None: free text."""
    strict: bool
    """Whether the whole schema of the document must be enforced, or only what the engine supports."""
    max_calls: int
    opens_thought: bool
    """Whether the prompt ends inside a thought, which the answer has to close first."""
    thinks: bool
    """Whether a thought may precede the answer."""
    after_thought: bool = False
    """Whether the constraint begins after the thought, which it then does not describe."""
    pattern: str | None = None
    """A regular expression for an answer that is neither a call nor a document."""

    @property
    def is_free_text(self) -> bool:
        """Whether nothing is required of the text of an answer that is not a call."""
        return self.document is None and self.pattern is None

    @property
    def limits_calls(self) -> bool:
        """Whether calls are constrained although none is required."""
        return not self.required and self.is_free_text and any(map(_is_limited, self.tools))


decode_form = msgspec.msgpack.Decoder(Form).decode


def may_be_constrained(job: "Job") -> bool:
    """Whether anything in a job asks for a constraint of its answer."""
    settings = job.settings
    is_text = settings.format.kind == "text" and settings.pattern is None
    return job.offer.required or not is_text or any(map(_is_limited, map(CalledTool.of, job.offer.tools)))


def _is_limited(tool: CalledTool) -> bool:
    """Whether calls of a tool are constrained although none is required."""
    return tool.strict or tool.grammar is not None


def form_of(job: "Job", renderer: "Renderer", *, opens_thought: bool = False) -> Form:
    """The requirements on the answer to a job. Raises ``UnsupportedParameter`` if a call is required and the
    format of the model's calls is not known."""
    output, format, settings = renderer.output_format, job.settings.format, job.settings
    has_calls = output.is_harmony or output.calls is not None
    if job.offer.required and not has_calls:
        raise UnsupportedParameter.at(
            "tool_choice", "this server cannot force calls in the format of this model"
        )
    return Form(
        output=output,
        tools=[CalledTool.of(tool) for tool in job.offer.tools] if has_calls else [],
        required=job.offer.required,
        document=(format.schema or ANY_OBJECT) if format.kind != "text" else None,
        strict=format.is_strict,
        max_calls=_MAX_CALLS if settings.parallel_tool_calls else 1,
        opens_thought=opens_thought,
        thinks=opens_thought or _may_think(renderer),
        pattern=settings.pattern if format.kind == "text" else None,
    )


def _may_think(renderer: "Renderer") -> bool:
    """Whether a model may begin a thought by itself: if its vocabulary has a token for that."""
    output = renderer.output_format
    return output.is_harmony or any(token in output.think_open for token in renderer.control_ids())


def param_of(form: Form) -> str:
    """The field of the client's request that a constraint enforces."""
    return "tools" if form.required or form.is_free_text else "text.format.schema"


def arguments_schema(tool: CalledTool) -> bytes:
    """The JSON schema of a call's arguments, with the tool's regular expression as a ``pattern``.

    A schema cannot contain a Lark grammar. ``custom_tool_inputs`` checks inputs against it afterwards.
    """
    grammar = tool.grammar
    if grammar is None or grammar.syntax != "regex":
        return tool.parameters
    string = {"type": "string", "pattern": f"^(?:{grammar.definition})$"}
    return wire.encode(
        {
            "type": "object",
            "properties": {"input": string},
            "required": ["input"],
            "additionalProperties": False,
        }
    )


class CallShapes:
    """Describes the calls of one answer. Raises ``InvalidRequest`` for a strict tool whose arguments cannot
    be enforced in the layout."""

    def __init__(self, layout: Calls, tools: list[CalledTool], max_calls: int) -> None:
        self._layout = layout
        self._max_calls = max_calls
        is_list = layout.is_bracketed
        self._lead = _lead(layout)
        between = layout.between
        if is_list or not (between or self._lead):
            between = ", " if is_list else "\n"
        self._separator = between + self._lead
        self._section_open = layout.section_open + ("[" if is_list else "")
        self._section_close = ("]" if is_list else "") + layout.section_close
        self._one = choice([_call(layout, tool, number) for number, tool in enumerate(tools)])

    def all(self) -> Shape:
        """All calls of an answer."""
        opening = self._section_open + self._lead
        stripped = opening.lstrip()
        # White space may end a thought instead of beginning the calls.
        space = SPACE if stripped != opening else sequence()
        return sequence(space, Mark(stripped), self._repeated(self._max_calls), Mark(self._section_close))

    def after_marks(self, *, alone: bool) -> list[tuple[str, Shape]]:
        """Each mark by which the parser recognizes calls in text, and what follows it; empty if no mark
        precedes calls. ``alone``: only one call, or one section, follows."""
        found: list[tuple[str, Shape]] = []
        for mark in call_reader(self._layout, OfferedTools(Offer()), trusted=True).starts:
            if mark in self._section_open:
                rest = _after(mark, self._section_open) + self._lead
                shape = sequence(Mark(rest), self._repeated(self._max_calls), Mark(self._section_close))
            elif mark in self._lead:
                calls = self._repeated(1 if alone else self._max_calls)
                shape = sequence(Mark(_after(mark, self._lead)), calls)
            else:
                continue
            found.append((mark, shape))
        return found

    def _repeated(self, most: int) -> Shape:
        return Repeated(self._one, self._separator, most) if most > 1 else self._one


def _after(mark: str, text: str) -> str:
    return text[text.index(mark) + len(mark) :]


def _lead(layout: Calls) -> str:
    """What precedes the name, or the JSON, of every call."""
    match layout:
        case NamedJsonCalls(id_open=""):
            return layout.open + layout.name_prefix
        case NamedJsonCalls():
            return layout.id_open
        case TaggedCalls() | BracedCalls():
            return layout.open + layout.name_open
        case NestedTagCalls():
            return layout.open + layout.tag_prefix + layout.name_open
        case _:
            return layout.open


def _call(layout: Calls, tool: CalledTool, number: int) -> Shape:
    """A call from behind its lead on."""
    schema, strict, param = arguments_schema(tool), tool.strict, f"tools[{number}].parameters"
    match layout:
        case JsonCalls():
            return _json_call(layout, tool, number)
        case NamedJsonCalls():
            return _named_json_call(layout, tool, number)
        case TaggedCalls():
            before, is_indexed, after = layout.index_attribute.partition("{index}")
            name: list[Shape] = [Mark(escaped(layout, tool.name) + before), *([_INDEX] if is_indexed else [])]
            values = TaggedValues(layout, schema, strict=strict, param=param)
            end = layout.arguments_close + layout.close
            return sequence(*name, Mark(after + layout.name_close), values.arguments(end))
        case NestedTagCalls():
            nested = NestedTagValues(layout, schema, strict=strict, param=param)
            end = layout.tag_prefix + layout.arguments_close + layout.close
            return sequence(Mark(tool.name + layout.name_close), nested.arguments(end))
        case PythonCalls():
            python = PythonValues(schema, strict=strict, param=param)
            return sequence(Mark(f"{tool.name}("), python.arguments(")"))
        case BracedCalls():
            braced = BracedValues(layout, schema, strict=strict, param=param)
            return sequence(Mark(f"{tool.name}{{"), braced.arguments("}" + layout.close))


def json_arguments(tool: CalledTool, number: int) -> Shape:
    """The arguments of a call as JSON."""
    grammar = tool.grammar
    if grammar is not None and grammar.syntax == "lark":
        return sequence(Mark('{"input": "'), Input(grammar), Mark('"}'))
    fallback = tool.parameters if grammar is not None else b""
    return Json(arguments_schema(tool), tool.strict, f"tools[{number}].parameters", fallback)


def _json_call(layout: JsonCalls, tool: CalledTool, number: int) -> Shape:
    parts: list[Shape] = [Mark(f"{quoted(layout.name_key)}: {quoted(tool.name)}, ")]
    parts += [Mark(f"{quoted(layout.arguments_key)}: "), json_arguments(tool, number)]
    if layout.id_key == "id":  # Mistral's follows, with nine characters; Cohere's precedes and counts
        parts += [Mark(f', {quoted(layout.id_key)}: "'), _ID, Mark('"')]
    elif layout.id_key:
        parts[:0] = [Mark(f'{quoted(layout.id_key)}: "'), _INDEX, Mark('", ')]
    return sequence(Mark("{"), *parts, Mark("}" + layout.close))


def _named_json_call(layout: NamedJsonCalls, tool: CalledTool, number: int) -> Shape:
    lead: list[Shape] = [_LEADING_ID, Mark(layout.open + layout.name_prefix)] if layout.id_open else []
    parts: list[Shape] = [*lead, Mark(tool.name)]
    if layout.id_separator:
        parts += [Mark(layout.id_separator), _INDEX if layout.id_is_index else _ID]
    return sequence(*parts, Mark(layout.arguments_open), json_arguments(tool, number), Mark(layout.close))


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
