"""What a job requires of its answer, as data for the sandbox.

Schemas and grammars come from clients, so the sandbox writes the constraint.
"""

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from slipring.base.errors import UnsupportedParameter
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.tool_definitions import flat_name, parameters_of
from slipring.protocol import wire
from slipring.protocol.tools.grammars_and_schemas import Grammar
from slipring.protocol.tools.toolset.toolset import CallableTool, FunctionTool, Kind

if TYPE_CHECKING:  # the sandbox's process needs none of them
    from slipring.core.generation import Job
    from slipring.prompts.rendering import Renderer

ANY_OBJECT = b'{"type":"object"}'
_MAX_CALLS = 16


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

    A schema cannot contain a Lark grammar. ``custom_inputs`` checks inputs against it afterwards.
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
