"""What ``slipring inspect`` reports about a model, as plain data, and how it is collected: the model's
renderer is made and tried with a sample conversation. ``--json`` prints the facts: keys are stable.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from slipring.commands.inspection.model_source import ModelSource, SpelledVocabulary
from slipring.commands.inspection.sample_conversation import (
    ANSWER,
    CALL,
    LAST_THOUGHTS,
    NEXT_QUESTION,
    QUESTION,
    SECOND_CALL,
    THOUGHTS,
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
from slipring.engines.tokens.template_choice import NAMES, STOPS, find_builtin, make_renderer, read_variables
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.rendering import ChainChoice, Renderer
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer


class ModelFacts(Struct, frozen=True, kw_only=True):
    name: str
    engine: str = ""
    """The kind of engine; empty for a directory of tokenizer files."""
    place: str
    """The path or the URL that was inspected."""
    architecture: str = ""
    context_tokens: int | None = None
    sessions: str | None = None
    """How turns use sessions of the server, in one line; None if it is no such server."""
    pictures: str | None = None
    """How pictures get to the model, in one line; None for a directory of tokenizer files."""


class WriterFacts(Struct, frozen=True, kw_only=True):
    """What writes contexts."""

    kind: Literal["template", "builtin_template"]
    name: str
    """Of the built-in template; empty for the model's own template."""
    template_engine: str
    """The library that runs the template."""
    why: str


class MarksFacts(Struct, frozen=True, kw_only=True):
    open: str
    close: str


class FormatFacts(Struct, frozen=True, kw_only=True):
    """How the model writes its answers."""

    found: str
    """How the format was found."""
    layout: str
    """The layout of calls; empty if none is known."""
    calls: dict[str, Any] | None
    """The marks of calls, by the names that the layout has for them."""
    thoughts: MarksFacts | None
    calls_end_thoughts: bool
    """Whether calls at the end of an answer end a thought that is not closed."""
    ignored: tuple[str, ...]
    """Marks that have no meaning."""
    tools_described_by: str
    """``template``, or ``slipring``, which does it in the system message if the template does not."""


class StopToken(Struct, frozen=True, kw_only=True):
    id: int | None
    """None if the vocabulary does not have it."""
    name: str | None
    sources: tuple[str, ...]
    """Of ``eos_token``, ``files``, ``template``."""


class VariableFacts(Struct, frozen=True, kw_only=True):
    """The variables of the template that control thoughts, and the options of the engine for them."""

    thinking: str
    """The option ``thinking``."""
    given: dict[str, Any]
    """The option ``variables``."""
    by_effort: dict[str, dict[str, Any]]
    """The variables for each effort of the API."""
    thinks_by_default: bool | None
    """None if there is no switch, or the model decides."""
    can_be_off: bool
    keep: dict[str, Any]
    """The variables with which the template keeps the thoughts of earlier turns."""
    keeps_by_default: bool


class AdaptedForm(Struct, frozen=True, kw_only=True):
    """A form of messages that the template does not take, and what slipring does instead."""

    form: str
    adaptation: str


class TokenizerFacts(Struct, frozen=True, kw_only=True):
    place: Literal["local", "server"]
    """Where text is tokenized."""
    pre_tokenizer: str
    tokens: int | None
    control_tokens: int


class Appending(Struct, frozen=True, kw_only=True):
    """Whether turns of a kind are appended to what the model has read and written before."""

    appends: bool
    reason: str | None
    """Why not, in the words of ``fallback`` in a turn's timing."""


class AppendingFacts(Struct, frozen=True, kw_only=True):
    """None where the sample conversation has no such turn: without a format of calls, or of thoughts."""

    tool_loop: Appending | None
    tool_loop_with_thoughts: Appending | None
    user_turn: Appending | None
    user_turn_after_thoughts: Appending | None


class Token(Struct, frozen=True, kw_only=True):
    id: int
    text: str | None
    """None where only the server knows it."""
    control: bool


class SampleFacts(Struct, frozen=True, kw_only=True):
    """The prompt of a sample conversation."""

    text: str
    tokens: tuple[Token, ...]
    """Empty if nothing can tokenize before the model is loaded."""


class ParsedCall(Struct, frozen=True, kw_only=True):
    """An answer as the model writes it, and what the parser reads."""

    written: str
    thoughts: str
    text: str
    name: str | None
    arguments: str | None
    is_right: bool
    """Whether thoughts, name and arguments are those that were written."""


class Finding(Struct, frozen=True, kw_only=True):
    """A problem or a warning."""

    what: str
    remedy: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """Everything about a model. What needs a usable template is None or empty without one."""

    works: bool
    problems: tuple[Finding, ...]
    """Because of these it does not work."""
    warnings: tuple[Finding, ...]
    model: ModelFacts
    writer: WriterFacts | None = None
    format: FormatFacts | None = None
    stop_tokens: tuple[StopToken, ...] = ()
    variables: VariableFacts | None = None
    adapted_forms: tuple[AdaptedForm, ...] = ()
    sampling: dict[str, float | None] | None = None
    tokenizer: TokenizerFacts | None = None
    appending: AppendingFacts | None = None
    kept: tuple[ChainChoice, ...] = ()
    sample: SampleFacts | None = None
    parsed_call: ParsedCall | None = None


_FORMS = {
    "system": ("a system message", "it is written as a user message"),
    "systems": ("several system messages at the beginning", "they are joined"),
    "late_system": ("a system message after others", "it is written as a user message"),
    "users": ("several user messages in a row", "they are joined"),
    "several_calls": ("several calls in one message", "each is written in a message of its own"),
    "outputs": ("tool outputs", "they are written as user messages"),
    "user_after_outputs": ("a user message after outputs", "an answer is put between them"),
}
_LAST = Answer()
"""The answer to the last turn, which is only prompted for."""


class Inspected(Struct, frozen=True):
    """A model with its renderer."""

    source: ModelSource
    renderer: TemplateRenderer
    readable: TemplateRenderer
    """Renders like ``renderer`` to ids that can be decoded in this process."""


def inspect_model(source: ModelSource) -> Inspected:
    """Make the renderer of a model. Blocks, and may ask a server. Raises ``StartupError``."""
    renderer = make_renderer(source.kind, source.options, source.info, source.vocabulary)
    readable = renderer
    if not isinstance(source.vocabulary, Tokenizer | SpelledVocabulary):
        spelled = SpelledVocabulary.like(source.vocabulary)
        readable = make_renderer(source.kind, source.options, source.info, spelled)
    return Inspected(source, renderer, readable)


def model_facts(source: ModelSource) -> ModelFacts:
    return ModelFacts(
        name=source.name,
        engine=source.engine,
        place=source.place,
        architecture=source.info.family,
        context_tokens=source.context,
        sessions=source.sessions,
        pictures=source.pictures,
    )


def tokenizer_facts(source: ModelSource) -> TokenizerFacts:
    vocabulary = source.vocabulary
    local = vocabulary if isinstance(vocabulary, Tokenizer) else None
    return TokenizerFacts(
        place="local" if local is not None else "server",
        pre_tokenizer=source.pre_tokenizer or (local.pre_tokenizer if local is not None else ""),
        tokens=local.size if local is not None else None,
        control_tokens=len(vocabulary.control_tokens()),
    )


def sampling_facts(source: ModelSource) -> dict[str, float | None]:
    return structs.asdict(source.sampling)


def writer_facts(model: Inspected) -> WriterFacts:
    renderer, source = model.renderer, model.source
    engine = renderer.template.engine
    dialect = source.options.dialect
    if renderer.model.source == source.info.template:
        return WriterFacts(
            kind="template", name="", template_engine=engine, why="the model's files have this template"
        )
    name = dialect if dialect in NAMES else find_builtin(source.info, renderer.vocabulary)
    why = (
        "the option dialect names it"
        if dialect
        else "the model's own template is missing, or lacks something"
    )
    return WriterFacts(kind="builtin_template", name=name or "", template_engine=engine, why=why)


def format_facts(model: Inspected) -> FormatFacts:
    renderer = model.renderer
    format = renderer.output_format
    calls = msgspec.to_builtins(format.calls) if format.calls is not None else None
    tag = calls.pop("type") if calls is not None else ""
    detected = renderer.detected
    has_own = _has_calls(detected.format) or not _has_calls(format)
    found = detected.found if has_own else "JSON calls of Hermes, because the template writes none"
    thoughts = MarksFacts(open=format.think_open, close=format.think_close)
    return FormatFacts(
        found=found,
        layout="harmony" if format.is_harmony else tag,
        calls=calls,
        thoughts=thoughts if format.think_close else None,
        calls_end_thoughts=format.calls_end_thoughts,
        ignored=format.ignored,
        tools_described_by="template" if detected.writes_tools else "slipring",
    )


def stop_tokens(model: Inspected) -> tuple[StopToken, ...]:
    """The tokens that end an answer, then those that should and are not in the vocabulary."""
    renderer = model.renderer
    vocabulary = renderer.vocabulary
    named: dict[str, list[str]] = {}
    if renderer.model.eos_token:
        named.setdefault(renderer.model.eos_token, []).append("eos_token")
    further = filter(vocabulary.has_control, STOPS.get(model.source.options.dialect, ()))
    for stop in (*renderer.output_format.stops, *further):
        named.setdefault(stop, []).append("template")
    ids = {id: ["files"] for id in model.source.info.stop_ids}
    known = {vocabulary.control(name): name for name in named if vocabulary.has_control(name)}
    names = control_names(vocabulary) | known
    found = [
        StopToken(
            id=id,
            name=names.get(id),
            sources=(*ids.get(id, []), *named.get(names.get(id, ""), [])),
        )
        for id in sorted(renderer.stop_ids())
    ]
    missing = [
        StopToken(id=None, name=name, sources=tuple(sources))
        for name, sources in named.items()
        if not vocabulary.has_control(name)
    ]
    return (*found, *missing)


def variable_facts(model: Inspected) -> VariableFacts:
    options, switches = model.source.options, model.renderer.detected.thinking
    return VariableFacts(
        thinking=options.thinking,
        given=dict(read_variables(model.source.kind, options)),
        by_effort={effort: dict(variables) for effort, variables in switches.by_effort.items()},
        thinks_by_default=switches.thinks_by_default,
        can_be_off=switches.can_be_off,
        keep=switches.keep_variables(),
        keeps_by_default=switches.keeps_by_default,
    )


def adapted_forms(model: Inspected) -> tuple[AdaptedForm, ...]:
    forms = structs.asdict(model.renderer.forms)
    refused = [name for name, is_taken in forms.items() if is_taken is False]
    hidden = {"systems"} if "system" in refused else set()
    return tuple(
        AdaptedForm(form=_FORMS[name][0], adaptation=_FORMS[name][1])
        for name in refused
        if name not in hidden
    )


def appending_facts(model: Inspected) -> AppendingFacts:
    format = model.renderer.output_format
    loop, turn = _try_turns(model, thinks=False)
    thinking_loop, thinking_turn = _try_turns(model, thinks=True) if _has_thoughts(format) else (None, None)
    return AppendingFacts(
        tool_loop=loop,
        tool_loop_with_thoughts=thinking_loop,
        user_turn=turn,
        user_turn_after_thoughts=thinking_turn,
    )


def sample_facts(model: Inspected) -> SampleFacts:
    """The prompt for the last turn of the sample conversation. Raises ``Refusal``."""
    text = spell(model.readable.vocabulary, _last_prompt(model, model.readable))
    if model.source.unknown_vocabulary:
        return SampleFacts(text=text, tokens=())
    vocabulary = model.renderer.vocabulary
    names = control_names(vocabulary)
    tokens = tuple(
        Token(id=id, text=names.get(id) or _text_of(vocabulary, id), control=id in names)
        for id in _last_prompt(model, model.renderer)
    )
    return SampleFacts(text=text, tokens=tokens)


def parsed_call(model: Inspected) -> ParsedCall | None:
    """The sample call as the model writes it, parsed; None if no format of calls is known. Raises
    ``Refusal``."""
    renderer = model.readable
    format = renderer.output_format
    if not _has_calls(format):
        return None
    thinks = _has_thoughts(format)
    step = next(_steps(model, renderer, thinks=thinks, loops=1))
    found = read_back(renderer, step)
    name, arguments = found.calls[0] if found.calls else (None, None)
    is_right = len(found.calls) == 1 and name == CALL.name and same_arguments(CALL, arguments or "")
    return ParsedCall(
        written=step.emission.text,
        thoughts=found.thoughts,
        text=found.text,
        name=name,
        arguments=arguments,
        is_right=is_right
        and found.thoughts.strip() == (THOUGHTS if thinks else "")
        and not found.text.strip(),
    )


def _last_prompt(model: Inspected, renderer: Renderer) -> list[int]:
    steps = list(_steps(model, renderer, thinks=_has_thoughts(renderer.output_format), loops=1))
    return steps[-1].rendering.prompt.ids()


def _try_turns(model: Inspected, *, thinks: bool) -> tuple[Appending | None, Appending]:
    """Whether the turns of a tool loop append, and a user's turn after it."""
    has_calls = _has_calls(model.renderer.output_format)
    reasons = list(_reasons(model, thinks=thinks))
    loop, rest = reasons[1:3] if has_calls else [], reasons[3:] if has_calls else reasons[1:]
    in_loop = next(filter(None, loop or reasons[:1]), None)
    after = next(filter(None, rest or reasons[-1:]), None)
    return (
        Appending(appends=in_loop is None, reason=in_loop) if has_calls else None,
        Appending(appends=after is None, reason=after),
    )


def _reasons(model: Inspected, *, thinks: bool) -> Iterator[str | None]:
    """Why each turn was rendered in full; None for turns that were not. Ends with a turn that cannot be
    rendered at all."""
    try:
        for step in _steps(model, model.readable, thinks=thinks, loops=2):
            yield step.rendering.fallback
    except Refusal as refusal:
        yield str(refusal)


def _steps(model: Inspected, renderer: Renderer, *, thinks: bool, loops: int) -> Iterator[AnsweredTurn]:
    """The sample conversation: a question, calls one after the other, an answer, another question."""
    thoughts, last_thoughts = (THOUGHTS, LAST_THOUGHTS) if thinks else ("", "")
    calls = (CALL, SECOND_CALL)[:loops] if _has_calls(renderer.output_format) else ()
    turns, given = [], user(QUESTION)
    for call in calls:
        turns.append(Turn(given, Answer(thoughts, calls=(call,))))
        given = output(call)
    turns += [Turn(given, Answer(last_thoughts, ANSWER)), Turn(user(NEXT_QUESTION), _LAST)]
    return converse(renderer, turns, Settings(effort=_effort(model, thinks=thinks)))


def _effort(model: Inspected, *, thinks: bool) -> str | None:
    """The effort with which a model thinks, or does not; None where that is its default."""
    switches = model.renderer.detected.thinking
    if thinks:
        return "high" if switches.thinks_by_default is False else None
    return "none" if switches.can_be_off else None


def _has_calls(format: OutputFormat) -> bool:
    return format.is_harmony or format.calls is not None


def _has_thoughts(format: OutputFormat) -> bool:
    return format.is_harmony or bool(format.think_close)


def _text_of(vocabulary: Any, id: int) -> str | None:
    return vocabulary.bytes_of(id).decode("utf-8", "replace") if vocabulary.is_local else None
