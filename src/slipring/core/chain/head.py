"""The head of a context: instructions and tools, which precede its first item."""

from hashlib import sha256

from msgspec import Raw, Struct, structs

from slipring.protocol import wire
from slipring.protocol.definitions import Definitions
from slipring.protocol.requests import CreateRequest
from slipring.protocol.tools import NO_TOOLS, Toolset


class Head(Struct, frozen=True):
    """Instructions and tools. Consecutive responses of a chain share one head while these are unchanged."""

    instructions: str | None = None
    tools: Toolset = NO_TOOLS
    instructions_json: Raw = wire.NULL
    """``instructions`` as JSON, encoded once per head because every response object repeats them."""

    digest: bytes = b""
    """Identifies instructions and tools, here and in the store."""

    def __post_init__(self) -> None:
        if self.instructions is not None:
            structs.force_setattr(self, "instructions_json", wire.raw(self.instructions))
        structs.force_setattr(self, "digest", _digest(self.instructions, self.tools.raw))

    @classmethod
    def read(cls, request: CreateRequest, before: "Head | None", definitions: Definitions) -> "Head":
        """The head of a request: ``before`` itself if nothing changed. Tools that changed are decoded, and
        their grammars and schemas added to ``definitions``."""
        if before is not None and before.has_tools_of(request):
            if before.instructions == request.instructions:
                return before
            return cls(instructions=request.instructions, tools=before.tools)
        return cls(
            instructions=request.instructions, tools=Toolset.read(request.tools, definitions=definitions)
        )

    def is_of(self, request: CreateRequest) -> bool:
        return self.instructions == request.instructions and self.has_tools_of(request)

    def has_tools_of(self, request: CreateRequest) -> bool:
        """Whether a request has these tools, byte for byte."""
        return self.tools.raw == raw_tools(request)

    @staticmethod
    def digest_of(request: CreateRequest) -> bytes:
        """The ``digest`` of a request's head, without decoding its tools."""
        return _digest(request.instructions, raw_tools(request))

    @property
    def size_bytes(self) -> int:
        # The string, its JSON, and CPython's cached UTF-8 of the string.
        return 3 * len(bytes(self.instructions_json)) + self.tools.size_bytes + 100


def raw_tools(request: CreateRequest) -> bytes:
    """The tools of a request as JSON; an empty list if it has none."""
    raw = wire.given(request.tools)
    return bytes(raw) if raw is not None else b"[]"


def _digest(instructions: str | None, tools: bytes) -> bytes:
    given = b"" if instructions is None else b"=" + instructions.encode()
    return sha256(len(given).to_bytes(8, "big") + given + tools).digest()


NO_HEAD = Head()
"""Of a context with neither."""
