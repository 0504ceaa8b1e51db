"""Calls of built-in tools of the API that a tool of a registered MCP server answers: the arguments that it
gets.
"""

from collections.abc import Mapping

from msgspec import Raw, Struct

from slipring.protocol import wire
from slipring.protocol.hosted.builtin_tools import BuiltinKind


class Builtin(Struct, frozen=True, eq=False):
    """A built-in type, and how its calls become calls of the tool that answers it."""

    kind: BuiltinKind
    argument: str
    given: Mapping[str, Raw] = {}
    """The arguments that the request itself determines."""
    container: str | None = None
    """The container that the request names for code."""

    def arguments(self, text: str) -> str:
        """The arguments of the tool, as JSON, for what the model wrote."""
        return wire.encode({**self.given, self.argument: text}).decode()
