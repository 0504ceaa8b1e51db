"""Calls of built-in tools that the client runs, and their outputs: shells, patches, computers.

A model knows none of these forms. It calls a function of the tool's name and reads the output as a text:
``arguments`` and ``text`` are what a model wrote and reads. A call of ``computer`` has a list of actions at a
screen, one of the older ``computer_use_preview`` has one action; their outputs are screenshots.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

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
