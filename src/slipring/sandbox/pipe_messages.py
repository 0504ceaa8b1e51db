"""Messages between a sandbox and its child processes: MessagePack, each preceded by its length.

They hold data only, so nothing that a client sends can be executed by decoding it.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

LENGTH_BYTES = 4


class Words(Struct, frozen=True):
    """How errors call what a sandbox does, and its limits."""

    verb: str = "compile"
    participle: str = "compiled"
    subjects: str = "grammars or schemas"
    timeout: str = "compile_timeout_s"
    memory: str = "compile_memory_bytes"
    size: str = "max_compiled_bytes"
    """Of a call."""
    result: str = "max_compiled_bytes"


COMPILING = Words()
MIB = 2**20


class SandboxLimits(Struct, frozen=True):
    """Limits of one sandbox; ``core/limits.py`` documents the settings."""

    timeout_s: float = 2.0
    """Processor time of one call."""
    memory_bytes: int = 256 * MIB
    """Memory of a child process, the interpreter included."""
    processes: int = 1
    waiting: int = 16
    """Calls of one tenant that may wait."""
    call_bytes: int = MIB
    """Size of a call."""
    result_bytes: int = MIB
    cache_bytes: int = 64 * MIB
    niceness: int = 10
    """How much the child leaves the processor to others."""
    is_sealed: bool = False
    """Whether the child opens no file, socket or pipe after its modules are imported."""
    words: Words = COMPILING


class Setup(Struct, frozen=True):
    """The first message to a child: the functions that it may call, and the limits on each call."""

    tasks: dict[str, str]
    """Function name to the module that defines it."""
    limits: SandboxLimits


class Call(Struct, frozen=True):
    """Asks a child to call a function."""

    task: str
    arguments: list[Any]


class Done(Struct, frozen=True, tag=True):
    """The function returned a value."""

    value: Any


class Rejected(Struct, frozen=True, tag=True):
    """The function raised ``InvalidRequest``."""

    message: str
    param: str | None
    code: str


class Exceeded(Struct, frozen=True, tag=True):
    """The call exceeded a limit. ``reason`` continues a sentence that begins with "it"."""

    reason: str


class Crashed(Struct, frozen=True, tag=True):
    """The function raised something unexpected: a bug of ours."""

    traceback: str


Outcome = Done | Rejected | Exceeded | Crashed


class Ready(Struct, frozen=True, tag=True):
    """The child has applied its limits and accepts calls."""


class Answer(Struct, frozen=True, tag=True):
    """The outcome of a call."""

    outcome: Outcome
    has_grown: bool
    """The child uses so much memory that it should be replaced before the next call."""


Reply = Ready | Answer

decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder(Reply).decode


def encode(message: Setup | Call | Reply | Outcome) -> bytes:
    """Encode a message, without its length."""
    return msgspec.msgpack.encode(message)


def with_length(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
