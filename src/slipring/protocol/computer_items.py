"""Calls of the ``computer`` tool, which the client runs: actions at a screen, and screenshots as outputs.

A call of ``computer`` has a list of actions, one of the older ``computer_use_preview`` has one action. A
model knows neither form. It calls a function of the tool's name; ``arguments`` are what it wrote.
"""

from typing import Any, Literal

from msgspec import Struct

from slipring.protocol import wire
from slipring.protocol.client_items import CallId, CallStatus

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


class Screenshot(Struct, tag_field="type", tag="computer_screenshot"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.image_url is None and self.file_id is None:
            raise ValueError("Object missing required field `image_url`")


class ComputerCallOutput(Struct):
    """The body of ``computer_call_output``."""

    call_id: CallId
    output: Screenshot
    acknowledged_safety_checks: list[SafetyCheck] | None = None
