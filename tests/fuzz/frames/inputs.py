"""What the fuzzer sends. An input is what one client does on one connection, as data that fits into a file.

Steps name responses, calls and items of the server by placeholders, which the client replaces when it sends
them: ``@response0@`` is the latest response of the connection, ``@response1@`` the one before it.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

FOUND = Path(__file__).parents[1] / "found"
"""The kept inputs: each has shown a fault."""
Level = Literal["raw", "json", "events", "http"]
LEVELS: tuple[Level, ...] = ("raw", "json", "events", "http")


class Text(Struct, frozen=True, omit_defaults=True, tag_field="send", tag="text"):
    """A text message in one frame."""

    text: str


class Message(Struct, frozen=True, omit_defaults=True, tag_field="send", tag="message"):
    """A message whose bytes are no UTF-8, or that is sent as binary."""

    hex: str
    binary: bool = False


class Bytes(Struct, frozen=True, omit_defaults=True, tag_field="send", tag="bytes"):
    """Bytes of the WebSocket connection, of any kind, written at once."""

    hex: str
    frames: int = 1
    """How many frames they are."""


class Settle(Struct, frozen=True, omit_defaults=True, tag_field="send", tag="nothing"):
    """Wait until the latest create has been answered, or its response has begun; but not for long."""

    until: Literal["answered", "begun"] = "answered"


class Request(Struct, frozen=True, omit_defaults=True, tag_field="send", tag="request"):
    """An HTTP request with a body."""

    method: str
    path: str
    text: str | None = None
    hex: str | None = None
    """The body if it is no UTF-8."""
    headers: dict[str, str] = {}

    @property
    def body(self) -> bytes | None:
        if self.hex is not None:
            return bytes.fromhex(self.hex)
        return None if self.text is None else self.text.encode()


Step = Text | Message | Bytes | Settle | Request


class Input(Struct, frozen=True, omit_defaults=True):
    """Everything that one client sends."""

    level: Level
    steps: tuple[Step, ...]
    betas: str = ""
    """The header ``OpenAI-Beta`` of the upgrade."""
    compress: bool = False
    """Whether the upgrade offers compression."""
    found: str = ""
    """In a kept file: which fault the input showed."""

    @property
    def frames(self) -> int:
        return sum(_frames_of(step) for step in self.steps)


def _frames_of(step: Step) -> int:
    if isinstance(step, Bytes):
        return step.frames
    return 0 if isinstance(step, Settle) else 1


def message(data: bytes) -> Text | Message:
    """The step that sends ``data`` as one message: as text, also if it is none."""
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        return Message(data.hex())


def body_step(method: str, path: str, data: bytes, headers: dict[str, str]) -> Request:
    try:
        return Request(method, path, text=data.decode(), headers=headers)
    except UnicodeDecodeError:
        return Request(method, path, hex=data.hex(), headers=headers)


_decoder = msgspec.json.Decoder(Input)


def read(path: Path) -> Input:
    """The input in a file."""
    return _decoder.decode(path.read_bytes())


def write(path: Path, given: Input) -> None:
    """Write an input as a readable file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(given), indent=2) + b"\n")
