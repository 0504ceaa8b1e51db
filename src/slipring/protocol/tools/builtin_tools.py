"""Built-in tools of the API that a tool of a registered MCP server answers: searches, and code.

The operator says which tool answers which type. A model sees one function per type, with the schema below.
In a head, ``KeptBuiltin`` stands for a tool that is answered, so that a type which nothing answers never
becomes a function.
"""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.tools.tool_types import KIND_OF_TYPE, MOST_TOOLS, BuiltinKind
from slipring.protocol.wire import given

TAG = "slipring.builtin"
_LONGEST_TYPE = 100
"""Characters of a type that a message quotes."""
_WORDS = tuple(f'"{kind}'.encode() for kind in ("web_search", "file_search", "code_interpreter", TAG))


class BuiltinFunction(Struct, frozen=True):
    """A built-in tool as a model sees it."""

    argument: str
    """The name of its only argument."""
    description: str

    @property
    def parameters(self) -> Raw:
        return wire.raw(
            {
                "type": "object",
                "properties": {self.argument: {"type": "string"}},
                "required": [self.argument],
                "additionalProperties": False,
            }
        )


FUNCTIONS: dict[BuiltinKind, BuiltinFunction] = {
    "web_search": BuiltinFunction("query", "Searches the web and returns what it found."),
    "file_search": BuiltinFunction("query", "Searches the user's files and returns passages that match."),
    "code_interpreter": BuiltinFunction("code", "Runs Python code and returns what it printed."),
}


class KeptBuiltin(Struct, tag_field="type", tag=TAG):
    """A tool that is answered here. Never on the wire."""

    kind: BuiltinKind
    sent: Raw
    """The tool as sent, which is what responses echo."""


class SentBuiltin(Struct, frozen=True):
    """A built-in tool of a request."""

    kind: BuiltinKind
    index: int
    """In ``tools``."""
    fields: dict[str, Raw]
    """As sent, without those that are null."""

    @property
    def is_offline(self) -> bool:
        """Whether the client wants no search outside."""
        return bytes(self.fields.get("external_web_access", b"")) == b"false"

    @property
    def container(self) -> str | None:
        """The container that the client names for code."""
        named = bytes(self.fields.get("container", b""))
        return msgspec.json.decode(named, type=str) if named.startswith(b'"') else None


class _ToolType(Struct):
    type: str | UnsetType = UNSET


_tools = msgspec.json.Decoder(list[Raw])
_outline = msgspec.json.Decoder(_ToolType)
_fields = msgspec.json.Decoder(dict[str, Raw])


def read_builtins(tools: Raw | UnsetType) -> tuple[SentBuiltin, ...]:
    """The built-in tools in a request's ``tools``. ``Toolset.read`` refuses what is not a list of tools."""
    sent = given(tools)
    if sent is None or not any(words in bytes(sent) for words in _WORDS):
        return ()
    wire.require_few(sent, MOST_TOOLS, "tools", "tools")
    found: list[SentBuiltin] = []
    for index, raw in enumerate(wire.decode(_tools, sent, where="tools")):
        if not any(words in bytes(raw) for words in _WORDS):
            continue
        kind = wire.decode(_outline, raw, where=f"tools[{index}]").type
        if kind == TAG:
            raise unanswered(TAG, f"tools[{index}]")
        if isinstance(kind, str) and kind in KIND_OF_TYPE:
            fields = {name: value for name, value in _fields.decode(raw).items() if bytes(value) != b"null"}
            found.append(SentBuiltin(KIND_OF_TYPE[kind], index, fields))
    return tuple(found)


def with_builtins(tools: Raw | UnsetType, answered: Mapping[int, BuiltinKind]) -> Raw | UnsetType:
    """The ``tools`` of a request, with those at these indexes as a head keeps them."""
    if not answered:
        return tools
    return wire.raw(
        [
            KeptBuiltin(answered[index], raw) if index in answered else raw
            for index, raw in enumerate(_tools.decode(given(tools) or b"[]"))
        ]
    )


def unanswered(kind: str, where: str) -> UnsupportedParameter:
    """The refusal of a tool that nothing here answers."""
    param = f"{where}.type"
    return UnsupportedParameter.at(
        param, f"nothing on this server answers tools of type '{kind[:_LONGEST_TYPE]}'. Leave the tool out"
    )
