"""What ``slipring inspect`` reports about a model, as plain data. ``--json`` prints it: keys are stable."""

from typing import Any, Literal

from msgspec import Struct

from slipring.prompts.rendering import ChainChoice


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
