"""The functions that a model may call from each place of a conversation on.

A tool with ``defer_loading`` is not offered until the result of a search, which the client has run, refers to
it. Messages of the system add and withdraw tools. A context describes a tool where it is added, so that all
that stands before is the same as without it.
"""

from msgspec import Raw, Struct

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol.messages.tools import Function, Tools, is_function, read_function, read_tool


class Addition(Struct, frozen=True, gc=False):
    """Tools that are added at one place, as an item, and the field of each."""

    item: dict[str, object]
    places: tuple[str, ...]


class LoadedTools:
    """Which functions are offered, while the messages of a request are read."""

    def __init__(self, tools: Tools) -> None:
        self._known = dict(tools.functions)
        self._offered = {name: True for name, function in tools.functions.items() if not function.is_deferred}
        """Whether a function may be called, for those that were offered at some time."""
        self._new: dict[str, Function] = {}

    @property
    def offered(self) -> list[str]:
        """The functions that may be called."""
        return [name for name, is_offered in self._offered.items() if is_offered]

    @property
    def withdrawn(self) -> list[str]:
        """The functions that a context describes, and that may no longer be called."""
        return [name for name, is_offered in self._offered.items() if not is_offered]

    def add(self, name: str, param: str) -> None:
        """Offer a function that is known by its name. Raises ``InvalidRequest``."""
        function = self._of(name, param)
        if not self._offered.get(name):
            self._offered[name] = True
            self._new[name] = function

    def define(self, definition: Raw, where: str) -> None:
        """Offer a function that is defined here, in place of any other of its name. Raises
        ``InvalidRequest``."""
        tool = read_tool(definition, where)
        if not is_function(tool):
            raise UnsupportedParameter.at(f"{where}.type", "only functions can be defined in messages")
        function = read_function(tool, where)
        name = function.name
        self._known[name] = self._new[name] = function
        self._offered[name] = True

    def withdraw(self, name: str, param: str) -> None:
        """No longer offer a function. Raises ``InvalidRequest``."""
        self._of(name, param)
        self._new.pop(name, None)
        if name in self._offered:
            self._offered[name] = False

    def take(self) -> Addition | None:
        """What was added since the last time."""
        if not self._new:
            return None
        functions, self._new = list(self._new.values()), {}
        tools = [function.sent for function in functions]
        item: dict[str, object] = {"type": "additional_tools", "role": "developer", "tools": tools}
        return Addition(item, tuple(function.where for function in functions))

    def _of(self, name: str, param: str) -> Function:
        function = self._known.get(name)
        if function is None:
            raise InvalidRequest.at(param, f"no tool of this request is named {quoted(name)}")
        return function
