"""Built-in tools that the client runs: shells, patches, computers. Their definitions, their calls and their
outputs.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire

CallId = Annotated[str, Meta(min_length=1, max_length=256)]
CallStatus = Literal["in_progress", "completed", "incomplete"]
_APPLIED = {"completed": "The patch was applied.", "failed": "The patch could not be applied."}


class ShellAction(Struct):
    """Commands to run, one after the other."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class LocalShellAction(Struct, tag_field="type", tag="exec"):
    """A program to run, with its arguments."""

    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    working_directory: str | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        for name in ("timeout_ms", "user", "working_directory"):
            if getattr(self, name) is None:
                setattr(self, name, UNSET)


class CreateFile(Struct, tag_field="type", tag="create_file"):
    path: str
    diff: str


class UpdateFile(Struct, tag_field="type", tag="update_file"):
    path: str
    diff: str


class DeleteFile(Struct, tag_field="type", tag="delete_file"):
    path: str


FileOperation = CreateFile | UpdateFile | DeleteFile


class ShellCall(Struct):
    """The body of ``shell_call``."""

    function: ClassVar[str] = "shell"
    call_id: CallId
    action: ShellAction
    status: CallStatus | None = None

    @property
    def arguments(self) -> str:
        return _arguments(self.action)


class LocalShellCall(Struct):
    """The body of ``local_shell_call``."""

    function: ClassVar[str] = "local_shell"
    call_id: CallId
    action: LocalShellAction
    status: CallStatus | None = None

    @property
    def arguments(self) -> str:
        return _arguments(self.action, "type", "env" if not self.action.env else "")


class ApplyPatchCall(Struct):
    """The body of ``apply_patch_call``."""

    function: ClassVar[str] = "apply_patch"
    call_id: CallId
    operation: FileOperation
    status: CallStatus | None = None

    def __post_init__(self) -> None:
        if self.status == "in_progress":
            self.status = "incomplete"  # the API has no other status for a patch that was cut off

    @property
    def arguments(self) -> str:
        return _arguments(self.operation)


class Exited(Struct, tag_field="type", tag="exit"):
    exit_code: int

    def __str__(self) -> str:
        return f"[exit code: {self.exit_code}]"


class TimedOut(Struct, tag_field="type", tag="timeout"):
    def __str__(self) -> str:
        return "[timed out]"


class CommandOutput(Struct):
    """What one command of a shell call printed, and how it ended."""

    stdout: str
    stderr: str
    outcome: Exited | TimedOut

    @property
    def text(self) -> str:
        printed = [self.stdout, f"[stderr]\n{self.stderr}" if self.stderr else "", str(self.outcome)]
        return "\n".join(each.rstrip("\n") for each in printed if each)


class ShellCallOutput(Struct):
    """The body of ``shell_call_output``."""

    call_id: CallId
    output: list[CommandOutput]

    @property
    def text(self) -> str:
        return "\n".join(each.text for each in self.output)


class LocalShellCallOutput(Struct):
    """The body of ``local_shell_call_output``."""

    call_id: CallId
    output: str

    @property
    def text(self) -> str:
        return self.output


class ApplyPatchCallOutput(Struct):
    """The body of ``apply_patch_call_output``."""

    call_id: CallId
    status: Literal["completed", "failed"]
    output: str | None = None

    @property
    def text(self) -> str:
        return f"{_APPLIED[self.status]}\n{self.output}" if self.output else _APPLIED[self.status]


def _arguments(action: Struct, *hidden: str) -> str:
    """An action as the arguments of a function, without what a model leaves out."""
    fields: dict[str, Any] = msgspec.to_builtins(action)
    shown = {name: value for name, value in fields.items() if value is not None and name not in hidden}
    return wire.encode(shown).decode()


ComputerKind = Literal["computer", "computer_use_preview"]
Button = Literal["left", "right", "wheel", "back", "forward"]


class Click(Struct, tag_field="type", tag="click"):
    button: Button
    x: int
    y: int
    keys: list[str] | None = None


class DoubleClick(Struct, tag_field="type", tag="double_click"):
    x: int
    y: int
    keys: list[str] | None = None


class Point(Struct):
    x: int
    y: int


class Drag(Struct, tag_field="type", tag="drag"):
    path: list[Point]
    keys: list[str] | None = None


class Keypress(Struct, tag_field="type", tag="keypress"):
    keys: list[str]


class Move(Struct, tag_field="type", tag="move"):
    x: int
    y: int
    keys: list[str] | None = None


class TakeScreenshot(Struct, tag_field="type", tag="screenshot"):
    pass


class Scroll(Struct, tag_field="type", tag="scroll"):
    x: int
    y: int
    scroll_x: int
    scroll_y: int
    keys: list[str] | None = None


class TypeText(Struct, tag_field="type", tag="type"):
    text: str


class Wait(Struct, tag_field="type", tag="wait"):
    pass


ComputerAction = Click | DoubleClick | Drag | Keypress | Move | TakeScreenshot | Scroll | TypeText | Wait


class SafetyCheck(Struct):
    """A warning about a call that a client has to acknowledge. Only upstreams make them."""

    id: str
    code: str | None = None
    message: str | None = None


class ComputerCall(Struct):
    """The body of ``computer_call``. Its actions are not interpreted: an upstream may know more of them."""

    call_id: CallId
    action: dict[str, Any] | None = None
    actions: list[dict[str, Any]] | None = None
    pending_safety_checks: list[SafetyCheck] | None = None
    status: CallStatus | None = None

    @property
    def function(self) -> ComputerKind:
        """The name of the function that the model called."""
        return "computer" if self.action is None else "computer_use_preview"

    @property
    def arguments(self) -> str:
        if self.action is not None:
            return wire.encode({"action": self.action}).decode()
        return wire.encode({"actions": self.actions or []}).decode()


ImageDetail = Literal["auto", "low", "high", "original"]


class Screenshot(Struct, tag_field="type", tag="computer_screenshot"):
    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None

    def __post_init__(self) -> None:
        if self.image_url is None and self.file_id is None:
            raise ValueError("Object missing required field `image_url`")


class ComputerCallOutput(Struct):
    """The body of ``computer_call_output``."""

    call_id: CallId
    output: Screenshot
    acknowledged_safety_checks: list[SafetyCheck] | None = None


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


class _Program(Struct):
    """The arguments of ``local_shell`` as a model writes them."""

    command: list[str]
    working_directory: str | None = None
    timeout_ms: int | None = None


class _Actions(Struct):
    """The arguments of ``computer`` as a model writes them."""

    actions: list[ComputerAction]


class _OneAction(Struct):
    """The arguments of ``computer_use_preview`` as a model writes them."""

    action: ComputerAction


_shell: msgspec.json.Decoder[ShellAction] = msgspec.json.Decoder(ShellAction)
_program = msgspec.json.Decoder(_Program)
_operation: msgspec.json.Decoder[FileOperation] = msgspec.json.Decoder(FileOperation)
_actions = msgspec.json.Decoder(_Actions)
_one_action = msgspec.json.Decoder(_OneAction)
_WRITTEN: dict[ClientKind, Callable[[str], dict[str, Any]]] = {
    "shell": lambda written: {"action": _shell.decode(written)},
    "local_shell": lambda written: {
        "action": LocalShellAction(**structs.asdict(_program.decode(written))),
    },
    "apply_patch": lambda written: {"operation": _operation.decode(written)},
    "computer": lambda written: structs.asdict(_actions.decode(written)),
    "computer_use_preview": lambda written: structs.asdict(_one_action.decode(written)),
}


def read_call(kind: ClientKind, arguments: str) -> dict[str, Any] | None:
    """The fields that the item of a call has for arguments that a model wrote; None if these are not in the
    form of the tool."""
    try:
        return _WRITTEN[kind](arguments)
    except (ValueError, RecursionError):
        return None


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
