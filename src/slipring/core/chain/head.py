"""The head of a context: what stands before its first item."""

from msgspec import Raw, Struct, structs

from slipring.protocol import wire
from slipring.protocol.intake import Intake
from slipring.protocol.requests import CreateRequest
from slipring.protocol.tools import NO_TOOLS, Toolset


class Head(Struct, frozen=True):
    """Instructions and tools. Shared along a chain for as long as they stay the same."""

    instructions: str | None = None
    tools: Toolset = NO_TOOLS
    instructions_json: Raw = wire.NULL
    """Made from ``instructions``, once for the whole chain: every response object echoes them."""

    def __post_init__(self) -> None:
        if self.instructions is not None:
            structs.force_setattr(self, "instructions_json", wire.raw(self.instructions))

    @classmethod
    def read(cls, request: CreateRequest, before: "Head | None", intake: Intake) -> "Head":
        """The head that a request gives its context; the parent's own where nothing in it changed. What new
        tools define goes to the ``intake``."""
        raw = wire.given(request.tools)
        if before is not None and before.tools.raw == (bytes(raw) if raw is not None else b"[]"):
            if before.instructions == request.instructions:
                return before
            return cls(instructions=request.instructions, tools=before.tools)
        return cls(instructions=request.instructions, tools=Toolset.read(request.tools, intake=intake))

    @property
    def size_bytes(self) -> int:
        # The text, its JSON and the copy that the interpreter keeps of its UTF-8.
        return 3 * len(bytes(self.instructions_json)) + self.tools.size_bytes + 100
