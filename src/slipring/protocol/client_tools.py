"""Built-in tools that the client runs: shells and patches of files, as functions that any model can call.

The API's own models know these tools. Others get a function of the same name, with the schema and the
description below; ``protocol.client_items`` has the forms of calls and outputs.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.errors import UnsupportedParameter
from slipring.protocol import wire

Caller = Literal["direct", "programmatic"]
ClientKind = Literal["shell", "local_shell", "apply_patch"]


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


ClientTool = ShellTool | LocalShellTool | ApplyPatchTool


def _object(**properties: object) -> bytes:
    return wire.encode(
        {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    )


_TEXTS = {"type": "array", "items": {"type": "string"}}
_TIMEOUT = {"type": ["integer", "null"], "description": "Milliseconds after which to stop; null for none."}
PARAMETERS: dict[ClientKind, bytes] = {
    "shell": _object(commands=_TEXTS, timeout_ms=_TIMEOUT),
    "local_shell": _object(
        command=_TEXTS, working_directory={"type": ["string", "null"]}, timeout_ms=_TIMEOUT
    ),
    "apply_patch": _object(
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string"},
        diff={"type": ["string", "null"], "description": "The changes; null to delete the file."},
    ),
}
_DESCRIPTIONS: dict[ClientKind, str] = {
    "shell": "Runs commands in a shell, one after the other, and returns what each printed.",
    "local_shell": "Runs a program with its arguments and returns what it printed.",
    "apply_patch": (
        "Creates, changes or deletes one file. 'diff' has a line for each line of the file that it mentions:"
        " unchanged lines begin with a space, removed ones with '-', added ones with '+'. A line '@@' begins"
        " each place that changes; '@@ text' names a line above it. A new file has added lines only."
    ),
}


def kind_of(tool: ClientTool) -> ClientKind:
    if isinstance(tool, ShellTool):
        return "shell"
    return "local_shell" if isinstance(tool, LocalShellTool) else "apply_patch"


def description_of(tool: ClientTool) -> str:
    """What a model is told about the tool."""
    described = _DESCRIPTIONS[kind_of(tool)]
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
        raise UnsupportedParameter(
            f"Unsupported parameter: '{param}': only 'local' is supported; this server has no containers.",
            param=param,
        )
    if isinstance(tool.allowed_callers, list) and "direct" not in tool.allowed_callers:
        param = f"{where}.allowed_callers"
        raise UnsupportedParameter(
            f"Unsupported parameter: '{param}': this server runs no programs that call tools.", param=param
        )
