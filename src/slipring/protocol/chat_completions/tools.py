"""``tools`` and ``tool_choice`` of a request, also in their older form, as the protocol's own tools.

The bytes of a tool depend on its definition alone, not on the order of the fields around it.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.chat_completions.error_paths import CUSTOM, FUNCTION, LEGACY_FUNCTION, Place
from slipring.protocol.chat_completions.requests import ChatRequest, short
from slipring.protocol.definitions import MOST_TOOLS


class ChatFunction(Struct):
    name: str
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None


class ChatGrammar(Struct):
    syntax: str
    definition: str


class ChatCustomFormat(Struct):
    type: Literal["text", "grammar"]
    grammar: ChatGrammar | None = None


class ChatCustomTool(Struct):
    name: str
    description: str | None = None
    format: ChatCustomFormat | None = None


class ChatTool(Struct):
    """A tool as a client sends it."""

    type: str
    function: ChatFunction | None = None
    custom: ChatCustomTool | None = None


class FunctionTool(Struct, tag_field="type", tag="function", omit_defaults=True):
    name: str
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None


class GrammarFormat(Struct, tag_field="type", tag="grammar"):
    syntax: str
    definition: str


class CustomTool(Struct, tag_field="type", tag="custom", omit_defaults=True):
    name: str
    description: str | None = None
    format: GrammarFormat | None = None


class ChatToolName(Struct):
    name: str


class ChatNamedTool(Struct):
    type: str
    function: ChatToolName | None = None
    custom: ChatToolName | None = None


class ChatAllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: list[ChatNamedTool]


class ChatToolChoice(ChatNamedTool):
    allowed_tools: ChatAllowedTools | None = None


ToolChoices = Literal["none", "auto", "required"] | ChatToolChoice
FunctionChoices = Literal["none", "auto"] | ChatToolName


class NamedTool(Struct):
    type: str
    name: str


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    mode: str
    tools: list[NamedTool]


_entries = msgspec.json.Decoder(list[Raw])
_tool = msgspec.json.Decoder(ChatTool)
_function = msgspec.json.Decoder(ChatFunction)
_choice: msgspec.json.Decoder[str | ChatToolChoice] = msgspec.json.Decoder(ToolChoices)
_function_choice: msgspec.json.Decoder[str | ChatToolName] = msgspec.json.Decoder(FunctionChoices)


class ToolOffer:
    """The tools of a request and the choice among them. Raises ``ApiError`` that names the field."""

    def __init__(self, request: ChatRequest) -> None:
        self.places: list[Place] = []
        """Where each tool stands in the request."""
        self._tools: list[FunctionTool | CustomTool] = []
        if request.has_legacy_functions:
            self._read_functions(request.functions)
        self._read_tools(request.tools)
        self.choice = _read_choice(request)

    @property
    def tools(self) -> Raw | UnsetType:
        """The ``tools`` of a create request."""
        return wire.raw(self._tools) if self._tools else UNSET

    def _read_tools(self, tools: Raw | UnsetType) -> None:
        for index, raw in enumerate(_list(tools, "tools")):
            where = f"tools[{index}]"
            tool = wire.decode(_tool, raw, where=where)
            if tool.type == "function":
                if tool.function is None:
                    raise wire.explain("Object missing required field `function`", where)
                self._add(_function_tool(tool.function), Place(where, FUNCTION))
            elif tool.type == "custom":
                if tool.custom is None:
                    raise wire.explain("Object missing required field `custom`", where)
                self._add(_custom_tool(tool.custom, where), Place(where, CUSTOM))
            else:
                raise UnsupportedParameter.at(
                    f"{where}.type",
                    f"{quoted(tool.type)} is not a tool of this endpoint, which has 'function' and"
                    " 'custom'. POST /v1/responses also runs tools on the server",
                )

    def _read_functions(self, functions: Raw | UnsetType) -> None:
        for index, raw in enumerate(_list(functions, "functions")):
            where = f"functions[{index}]"
            function = wire.decode(_function, raw, where=where)
            self._add(_function_tool(function), Place(where, LEGACY_FUNCTION))

    def _add(self, tool: FunctionTool | CustomTool, place: Place) -> None:
        self._tools.append(tool)
        self.places.append(place)


def _list(sent: Raw | UnsetType, name: str) -> list[Raw]:
    given = wire.given(sent)
    if given is None:
        return []
    wire.require_few(given, MOST_TOOLS, name, "tools")
    return wire.decode(_entries, given, where=name)


def _function_tool(function: ChatFunction) -> FunctionTool:
    parameters = wire.given(function.parameters)
    return FunctionTool(
        function.name,
        function.description,
        UNSET if parameters is None else parameters,
        function.strict or None,
    )


def _custom_tool(custom: ChatCustomTool, where: str) -> CustomTool:
    form = custom.format
    grammar: GrammarFormat | None = None
    if form is not None and form.type == "grammar":
        if form.grammar is None:
            raise wire.explain("Object missing required field `grammar`", f"{where}.custom.format")
        grammar = GrammarFormat(form.grammar.syntax, form.grammar.definition)
    return CustomTool(custom.name, custom.description, grammar)


def _read_choice(request: ChatRequest) -> Raw | UnsetType:
    """The ``tool_choice`` of a create request."""
    choice = short(request.tool_choice, "tool_choice", _choice)
    if choice is None:
        return _read_function_choice(request.function_call)
    if isinstance(choice, str):
        return wire.raw(choice)
    if choice.type != "allowed_tools":
        return wire.raw(_named(choice, "tool_choice"))
    if choice.allowed_tools is None:
        raise wire.explain("Object missing required field `allowed_tools`", "tool_choice")
    named = [
        _named(tool, f"tool_choice.allowed_tools.tools[{index}]")
        for index, tool in enumerate(choice.allowed_tools.tools)
    ]
    return wire.raw(AllowedTools(choice.allowed_tools.mode, named))


def _read_function_choice(sent: Raw | UnsetType) -> Raw | UnsetType:
    choice = short(sent, "function_call", _function_choice)
    if choice is None:
        return UNSET
    return wire.raw(choice if isinstance(choice, str) else NamedTool("function", choice.name))


def _named(tool: ChatNamedTool, where: str) -> NamedTool:
    if tool.type not in ("function", "custom"):
        raise UnsupportedParameter.at(f"{where}.type", f"{quoted(tool.type)} is not a tool of this endpoint")
    named = tool.function if tool.type == "function" else tool.custom
    if named is None:
        raise wire.explain(f"Object missing required field `{tool.type}`", where)
    return NamedTool(tool.type, named.name)
