"""Calls of built-in tools that the client runs, and their outputs: shells, and patches of files.

A model knows none of these forms. It calls a function of the tool's name and reads the output as a text:
``arguments`` and ``text`` are what a model wrote and reads. ``computer_items`` has those of ``computer``.
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
