"""A model's chat template, run in a sandbox with the conventions of Hugging Face's libraries.

When a ``ChatTemplate`` is made, both engines render a few conversations. If minijinja writes all of them like
Jinja2, it runs the template, and Jinja2 only the conversations with which minijinja fails. Otherwise Jinja2
runs all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from slipring.base.errors import InvalidRequest
from slipring.prompts.templates.chat_messages import YieldingList
from slipring.prompts.templates.template_engines import (
    Jinja2Template,
    MiniJinjaTemplate,
    OutOfFuel,
    SupportsStrftime,
    TemplateError,
    TemplateFailed,
    TemplateRefused,
)
from slipring.prompts.templates.type_declarations import declare_tools

_MAX_MESSAGE_CHARS = 300  # a template's error message may repeat the client's whole text
_PROBE_FUEL = 100_000
_TYPES = "tools_ts_str"
"""The variable of the tools' declarations as types."""

Variables = Mapping[str, Any]
"""Further variables of a template, such as ``enable_thinking``."""

NO_VARIABLES: Variables = {}


class ChatTemplate:
    """A compiled chat template. Raises ``TemplateError`` if neither engine can parse it."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        today: SupportsStrftime | None = None,
    ) -> None:
        self.source = source
        self.text_parts = False
        """Whether it takes the content of messages as lists of parts only."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._jinja2 = Jinja2Template(source, today)
        except TemplateError as error:
            raise TemplateError(f"The chat template cannot be parsed: {_first_line(error)}") from None
        self._minijinja: MiniJinjaTemplate | None = None
        self._reads_types = _TYPES in source
        self._no_tools = self._find_no_tools()
        try:
            fast = MiniJinjaTemplate(source, today)
        except TemplateError:
            return
        if all(self._agree(fast, {"tools": self._no_tools, **probe}) for probe in _PROBES):
            self._minijinja = fast

    @property
    def engine(self) -> str:
        """The name of the library that runs the template."""
        return "minijinja" if self._minijinja is not None else "Jinja2"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        variables: Variables = NO_VARIABLES,
    ) -> str:
        """Render a conversation. Raises ``InvalidRequest`` if the template fails or refuses it."""
        values = {
            **variables,
            **self._tokens,
            "messages": YieldingList(map(_in_parts, messages) if self.text_parts else messages),
            "tools": YieldingList(tools) if tools else self._no_tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if self._reads_types:
            values[_TYPES] = declare_tools(tools) if tools else None
        try:
            return self._render(values)
        except TemplateRefused as error:
            reason = str(error)[:_MAX_MESSAGE_CHARS]
            raise InvalidRequest(f"The model's template refuses this conversation: {reason}") from None
        except TemplateFailed as error:
            reason = _first_line(error)
            raise InvalidRequest(f"The model's template cannot write this conversation: {reason}") from None

    def compare(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Let Jinja2 run the template if minijinja does not write these messages like it."""
        probe = {"messages": messages, "tools": self._no_tools, "add_generation_prompt": True}
        if self._minijinja is not None and not self._agree(self._minijinja, probe):
            self._minijinja = None

    def _render(self, values: dict[str, Any]) -> str:
        if self._minijinja is not None:
            try:
                return self._minijinja.render(values)
            except OutOfFuel:
                raise
            except TemplateFailed:
                pass  # Jinja2 may know how
        return self._jinja2.render(values)

    def _find_no_tools(self) -> list[Any] | None:
        """What ``tools`` is without tools: None, or an empty list for templates that loop over it unasked."""
        choices: tuple[list[Any] | None, ...] = (None, [])
        for no_tools in choices:
            values = {"messages": [_USER], "add_generation_prompt": True, "tools": no_tools}
            try:
                self._jinja2.render({**self._tokens, "documents": None, **_copied(values)}, _PROBE_FUEL)
            except OutOfFuel:
                raise TemplateError("The chat template takes too many steps for one message.") from None
            except (TemplateRefused, TemplateFailed):
                continue
            return no_tools
        return None

    def _agree(self, fast: MiniJinjaTemplate, probe: Mapping[str, Any]) -> bool:
        """Whether both engines write the same. If a template fails with the tools of a probe, that says
        nothing about other tools: then with tools that have one kind of parameter each."""
        outcomes = self._outcome(fast, probe), self._outcome(self._jinja2, probe)
        if outcomes[0] != outcomes[1]:
            return False
        has_failed = outcomes[1] is None and probe.get("tools") is _TOOLS
        return not has_failed or all(self._agree(fast, {**probe, "tools": tools}) for tools in _PLAIN_TOOLS)

    def _outcome(
        self, engine: MiniJinjaTemplate | Jinja2Template, probe: Mapping[str, Any]
    ) -> str | bool | None:
        """What a template writes for a probe; False if it refuses it, None if it fails."""
        try:
            return engine.render({**self._tokens, "documents": None, **_copied(probe)})
        except TemplateRefused:
            return False
        except TemplateFailed:
            return None


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose content is a list."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": YieldingList([{"type": "text", "text": content}])}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_MAX_MESSAGE_CHARS]


def _copied(value: Any) -> Any:
    """A deep copy: templates may change what they are given."""
    if isinstance(value, Mapping):
        return {key: _copied(entry) for key, entry in value.items()}
    return YieldingList(map(_copied, value)) if isinstance(value, list) else value


def _call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


_SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A path with \"quotes\", <tags> & 'more'"},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "mode": {"type": ["string", "null"], "enum": ["read", "write"], "default": None},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def _tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_TOOLS = [
    _tool("read", "Reads a file", _SCHEMA),
    _tool("now", "", {"type": "object", "properties": {}}),
]
_PARAMETERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("string", "integer", "number", "boolean", "object", "array")),
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "object", "properties": {"deep": {"type": "boolean"}}}},
    {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    {"type": "string", "enum": ["read", "write"], "default": "read"},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {},
]
_PLAIN_TOOLS = [
    [_tool("read", "Reads a file", {"type": "object", "properties": {"path": each}, "required": ["path"]})]
    for each in ({"description": "Where it is", **schema} for schema in _PARAMETERS)
]
"""Tools with one parameter, of each kind."""
_ARGUMENTS: dict[str, Any] = {
    "path": "a/b.py\n<x> & \"é\" 'y'",
    "lines": [1, 2.5, -3],
    "mode": None,
    "options": {"deep": True, "shallow": False, "none": None, "list": []},
}
_THOUGHTS = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "Two\nthoughts.")
_SYSTEM, _USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": " Read <it>. "}
_ANSWER = {"role": "assistant", "content": '\nIt reads: "é".\n'}
_CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [_call("a1b2c3d4e", "read", _ARGUMENTS), _call("b2c3d4e5f", "now", {})],
}
_OUTPUTS = [
    {"role": "tool", "content": "line 1\nline 2", "tool_call_id": "a1b2c3d4e", "name": "read"},
    {"role": "tool", "content": "", "tool_call_id": "b2c3d4e5f", "name": "now"},
]
_CONVERSATIONS: list[list[dict[str, Any]]] = [
    [_USER],
    [_SYSTEM, _USER],
    [_USER, _ANSWER, _USER],
    [_SYSTEM, _USER, {**_ANSWER, **_THOUGHTS}, _USER],
    [_USER, _CALLS],
    [_USER, _CALLS, *_OUTPUTS],
    [_SYSTEM, _USER, {**_CALLS, **_THOUGHTS}, *_OUTPUTS],
    [_USER, {**_CALLS, "content": "First, I read."}, *_OUTPUTS, {**_ANSWER, **_THOUGHTS}],
    [_USER, _CALLS, *_OUTPUTS, {**_CALLS, **_THOUGHTS}, *_OUTPUTS, _ANSWER, _USER],
]
_SWITCHES: list[dict[str, Any]] = [
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
]
_PROBES: list[dict[str, Any]] = [
    *(
        {"messages": messages, "add_generation_prompt": messages[-1]["role"] != "assistant", **tools}
        for messages in _CONVERSATIONS
        for tools in ({}, {"tools": _TOOLS})
    ),
    *(
        {"messages": messages, "add_generation_prompt": True, "tools": _TOOLS, **switches}
        for messages in _CONVERSATIONS[3:7:3]
        for switches in _SWITCHES
    ),
]
"""Conversations in the forms that clients send, with values that engines write differently."""
