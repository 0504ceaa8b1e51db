"""A model's chat template, run in a sandbox with the conventions of Hugging Face's libraries.

Two libraries run templates, with the same filters, functions and limits. Jinja2 is what the authors of
templates test with, and runs all of them. minijinja is not quite Jinja: it changes no list in place and knows
no ``'%s' % x``. But with it, rendering and tokenizing a continuation takes 0.60 ms instead of 1.07 ms (the
means of 26 families; with the lookups of the sandbox written by hand, Jinja2 takes 0.85 ms), which is about a
tenth of the processor time of a turn in front of vLLM. When a ``ChatTemplate`` is made, both render a few
conversations. If minijinja writes all of them like Jinja2, it runs the template, and Jinja2 only the
conversations with which minijinja fails. Otherwise Jinja2 runs all.

Both count steps and not time: the same conversation always renders or always fails. minijinja counts by
itself. For Jinja2, access to an attribute or an entry, calls, and steps of loops over lists and ranges spend
fuel. minijinja keeps the GIL while a template runs. So templates get their lists as ``YieldingList``: when it
fetches an entry, Python code runs, and the interpreter can switch to other threads.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn, Protocol, TypeVar

import jinja2
import minijinja
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from slipring.base.errors import InvalidRequest
from slipring.prompts.templates.fixed_prompt import has_fixed_prompt
from slipring.prompts.tool_definitions import declare_tools

T = TypeVar("T")


_PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)
"""Made once: ``json.dumps`` would make one for each value."""


class YieldingList(list[T]):
    """A list whose entries are fetched by Python code, so that other threads can run in between."""

    def __iter__(self) -> Iterator[T]:
        yield from super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson`` as templates expect it: Jinja's own would escape for HTML."""
    if separators is None and indent is None and not (ensure_ascii or sort_keys):
        return _PLAIN_JSON.encode(value)
    item, key = separators if separators is not None else (", " if indent is None else ",", ": ")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=(item, key), sort_keys=sort_keys
    )


FUEL: Final = 2_000_000
"""Steps of one render. 200 messages of a tool loop take about 10,000; an endless loop ends in about 1 s."""
MAX_CHARS: Final = 32 * 2**20
"""Length of what one render may write: several times what the largest accepted context holds."""
_MAX_RANGE = 100_000
_CHANGES = re.compile(
    r"[.'\"]\s*(?:append|clear|extend|insert|pop|popitem|remove|reverse|setdefault|sort|update)\b"
)
"""The methods with which a template may change the lists and dicts that it is given."""
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class TemplateError(ValueError):
    """The template is unusable: it cannot be parsed, or cannot render a single user message."""


class TemplateRefused(Exception):
    """A template called ``raise_exception``: it does not write such a conversation."""


class TemplateFailed(Exception):
    """A template failed: it used a value in a way that is not possible, or exceeded a limit."""


class OutOfFuel(TemplateFailed):
    """A template took more steps than one render may take."""

    def __init__(self) -> None:
        super().__init__("it takes too many steps")


class SupportsStrftime(Protocol):
    """A date, such as a ``datetime.date``, for the template function ``strftime_now``."""

    def strftime(self, format: str, /) -> str: ...


def without_generation(source: str) -> str:
    """Replace ``{% generation %}``, which marks training targets and renders its content."""

    def plain(found: re.Match[str]) -> str:
        left, end, right = found.groups()
        return f"{{%{left} {'endif' if end else 'if true'} {right}%}}"

    return _GENERATION.sub(plain, source)


def raise_exception(message: object = "") -> NoReturn:
    """The function with which templates refuse a conversation."""
    raise TemplateRefused(str(message))


class MiniJinjaTemplate:
    """A template compiled by minijinja. Raises ``TemplateError`` if it cannot be parsed."""

    def __init__(self, source: str, today: SupportsStrftime | None) -> None:
        self._environment = minijinja.Environment(
            filters={"tojson": to_json},
            tests={"iterable": _is_iterable},
            globals={"raise_exception": raise_exception},
            fuel=FUEL,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=_never_escape,
            debug=False,
        )
        if today is not None:
            self._environment.add_global("strftime_now", today.strftime)
        try:
            self._environment.add_template("chat", without_generation(source))
        except minijinja.TemplateError as error:
            raise TemplateError(str(error)) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template. Raises ``TemplateRefused`` or ``TemplateFailed``."""
        try:
            return self._environment.render_template("chat", **variables)
        except TemplateRefused:
            raise
        except Exception as error:  # minijinja's own, or one that a called method raised
            if "out of fuel" in str(error):
                raise OutOfFuel from None
            raise TemplateFailed(str(error)) from None


def _is_iterable(value: object) -> bool:
    """As Jinja has it; to minijinja, ``none`` is iterable too."""
    return hasattr(value, "__iter__")


def _never_escape(name: str) -> bool:
    return False


class Jinja2Template:
    """A template compiled by Jinja2. Raises ``TemplateError`` if it cannot be parsed."""

    def __init__(self, source: str, today: SupportsStrftime | None) -> None:
        self._environment = _Sandbox()
        if today is not None:
            self._environment.globals["strftime_now"] = today.strftime
        try:
            syntax = self._environment.parse(without_generation(source))
            self.has_fixed_prompt = has_fixed_prompt(syntax)
            self._template = self._environment.from_string(syntax)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(str(error)) from None

    def render(self, variables: Mapping[str, Any], fuel: int = FUEL) -> str:
        """Render the template. Raises ``TemplateRefused`` or ``TemplateFailed``."""
        meter = self._environment.meter
        meter.refill(fuel)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(_metered(variables, meter.spend)):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_CHARS:
                    raise TemplateFailed(f"it writes more than {MAX_CHARS} characters")
        except (TemplateRefused, TemplateFailed):
            raise
        except Exception as error:  # Jinja2's own, or one that a called method raised
            raise TemplateFailed(str(error) or type(error).__name__) from None
        return "".join(pieces)


class _Meter:
    """Counts the steps of the render that runs in this thread."""

    def __init__(self) -> None:
        self._fuel: ContextVar[int] = ContextVar("fuel", default=0)

    def refill(self, fuel: int) -> None:
        self._fuel.set(fuel)

    def spend(self) -> None:
        fuel = self._fuel.get() - 1
        if fuel < 0:
            raise OutOfFuel
        self._fuel.set(fuel)


class _Sandbox(SandboxedEnvironment):
    """Jinja2's sandbox with a meter.

    Templates may change the lists and dicts that they are given (Kimi's do): see ``ChatTemplate``.
    """

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.meter = _Meter()
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["range"] = self._range

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.meter.spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.meter.spend()
        return super().getitem(obj, argument)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.meter.spend()
        return super().call(context, function, *args, **kwargs)

    def _range(self, *bounds: int) -> "_MeteredList":
        numbers = range(*bounds)
        if len(numbers) > _MAX_RANGE:
            raise TemplateFailed(f"a range of more than {_MAX_RANGE} numbers")
        return _MeteredList(numbers, self.meter.spend)


class _MeteredList(YieldingList[Any]):
    """A list that spends fuel with each step of a loop over it, or over a slice of it."""

    def __init__(self, entries: Any, spend: Callable[[], None]) -> None:
        super().__init__(entries)
        self._spend = spend

    def __iter__(self) -> Iterator[Any]:
        for entry in super().__iter__():
            self._spend()
            yield entry

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _MeteredList(found, self._spend) if isinstance(at, slice) else found


def _metered(variables: Mapping[str, Any], spend: Callable[[], None]) -> dict[str, Any]:
    """The variables with metered lists: those over which templates loop."""
    return {
        name: _MeteredList(value, spend) if isinstance(value, list) else value
        for name, value in variables.items()
    }


_MAX_MESSAGE_CHARS = 300  # a template's error message may repeat the client's whole text
_PROBE_FUEL = 100_000
_TYPES = "tools_ts_str"
"""The variable of the tools' declarations as types."""

Variables = Mapping[str, Any]
"""Further variables of a template, such as ``enable_thinking``."""

NO_VARIABLES: Variables = {}


class ChatTemplate:
    """A compiled chat template. Raises ``TemplateError`` if neither engine can parse it.

    Templates may change the lists and dicts that they are given, also the tools and the operator's variables.
    Those that could get new ones in each run.
    """

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
        self._changes_values = _CHANGES.search(source) is not None
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

    @property
    def has_fixed_prompt(self) -> bool:
        """Whether it opens the assistant turn with the same text after every conversation."""
        return self._jinja2.has_fixed_prompt

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
                return self._minijinja.render(self._own(values))
            except OutOfFuel:
                raise
            except TemplateFailed:
                pass  # Jinja2 may know how
        return self._jinja2.render(self._own(values))

    def _own(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values for one run, which neither another run nor another conversation may see changed."""
        return dict(_copied(values)) if self._changes_values else values

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
