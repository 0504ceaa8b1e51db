"""Built-in tools that the client runs: shells, patches, computers. Any model can call them as functions.

The API's own models know these tools. Others get a function of the same name, with the schema and the
description below; ``client_items`` has the forms of calls and outputs.
"""

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.client_items import Button, ComputerKind

Caller = Literal["direct", "programmatic"]
ClientKind = Literal["shell", "local_shell", "apply_patch"] | ComputerKind


Pixels = Annotated[int, Meta(ge=1)]


class Skill(Struct):
    """Instructions in the client's files that a model may read when it needs them."""

    name: str
    description: str
    path: str


class Environment(Struct):
    """Where a shell runs: ``local`` at the client, the others in containers of OpenAI."""

    type: str
    skills: list[Skill] | None = None


class ShellTool(Struct, tag_field="type", tag="shell"):
    environment: Environment | UnsetType | None = UNSET
    allowed_callers: list[Caller] | UnsetType | None = UNSET


class LocalShellTool(Struct, tag_field="type", tag="local_shell"):
    allowed_callers: list[Caller] | UnsetType | None = UNSET


class ApplyPatchTool(Struct, tag_field="type", tag="apply_patch"):
    allowed_callers: list[Caller] | UnsetType | None = UNSET


class ComputerTool(Struct, tag_field="type", tag="computer"):
    pass


class ComputerUsePreviewTool(Struct, tag_field="type", tag="computer_use_preview"):
    display_width: Pixels
    display_height: Pixels
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


ClientTool = ShellTool | LocalShellTool | ApplyPatchTool | ComputerTool | ComputerUsePreviewTool


def _object(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _parameters(**properties: object) -> bytes:
    return wire.encode(_object(**properties))


def _action(name: str, **properties: object) -> dict[str, object]:
    return _object(type={"type": "string", "enum": [name]}, **properties)


_TEXTS = {"type": "array", "items": {"type": "string"}}
_TIMEOUT = {"type": ["integer", "null"], "description": "Milliseconds after which to stop; null for none."}
_PIXELS = {"type": "integer"}
_AT = {"x": _PIXELS, "y": _PIXELS}
_HELD = {"keys": {**_TEXTS, "type": ["array", "null"], "description": "Keys held meanwhile; null for none."}}
_ACTION = {
    "anyOf": [
        _action("click", button={"type": "string", "enum": list(get_args(Button))}, **_AT, **_HELD),
        _action("double_click", **_AT, **_HELD),
        _action("drag", path={"type": "array", "items": _object(**_AT)}, **_HELD),
        _action("keypress", keys={**_TEXTS, "description": "Keys pressed together."}),
        _action("move", **_AT, **_HELD),
        _action("screenshot"),
        _action("scroll", **_AT, scroll_x=_PIXELS, scroll_y=_PIXELS, **_HELD),
        _action("type", text={"type": "string"}),
        _action("wait"),
    ]
}
PARAMETERS: dict[ClientKind, bytes] = {
    "shell": _parameters(commands=_TEXTS, timeout_ms=_TIMEOUT),
    "local_shell": _parameters(
        command=_TEXTS, working_directory={"type": ["string", "null"]}, timeout_ms=_TIMEOUT
    ),
    "apply_patch": _parameters(
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string"},
        diff={"type": ["string", "null"], "description": "The changes; null to delete the file."},
    ),
    "computer": _parameters(actions={"type": "array", "items": _ACTION}),
    "computer_use_preview": _parameters(action=_ACTION),
}
_COMPUTER = (
    "at a computer and returns a screenshot taken afterwards. Coordinates are pixels of the screen, from its"
    " top left corner; 'scroll_x' and 'scroll_y' are the pixels to scroll right and down. Begin with the"
    " action 'screenshot' if you have not seen the screen."
)
_DESCRIPTIONS: dict[ClientKind, str] = {
    "shell": "Runs commands in a shell, one after the other, and returns what each printed.",
    "local_shell": "Runs a program with its arguments and returns what it printed.",
    "apply_patch": (
        "Creates, changes or deletes one file. 'diff' has a line for each line of the file that it mentions:"
        " unchanged lines begin with a space, removed ones with '-', added ones with '+'. A line '@@' begins"
        " each place that changes; '@@ text' names a line above it. A new file has added lines only."
    ),
    "computer": f"Does actions, one after the other, {_COMPUTER}",
    "computer_use_preview": f"Does one action {_COMPUTER}",
}


def kind_of(tool: ClientTool) -> ClientKind:
    kind: ClientKind = tool.__struct_config__.tag  # type: ignore[assignment]
    return kind


def description_of(tool: ClientTool) -> str:
    """The description of the tool for models."""
    described = _DESCRIPTIONS[kind_of(tool)]
    if isinstance(tool, ComputerUsePreviewTool):
        size = f"{tool.display_width} x {tool.display_height} pixels"
        return f"{described} The screen has {size} and shows: {tool.environment}."
    environment = tool.environment if isinstance(tool, ShellTool) else None
    if not isinstance(environment, Environment) or not environment.skills:
        return described
    skills = "\n".join(f"- {skill.name} ({skill.path}): {skill.description}" for skill in environment.skills)
    return f"{described} Read the files of a skill before you do what it is for:\n{skills}"


def require_local(tool: ClientTool, where: str) -> None:
    """Refuse what only OpenAI's own service can do: containers, and programs that call tools."""
    environment = tool.environment if isinstance(tool, ShellTool) else None
    if isinstance(environment, Environment) and environment.type != "local":
        param = f"{where}.environment.type"
        raise UnsupportedParameter.at(param, "only 'local' is supported; this server has no containers")
    if isinstance(tool, ComputerTool | ComputerUsePreviewTool):
        return
    if isinstance(tool.allowed_callers, list) and "direct" not in tool.allowed_callers:
        param = f"{where}.allowed_callers"
        raise UnsupportedParameter.at(param, "this server runs no programs that call tools")
