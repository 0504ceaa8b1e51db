"""The head of a context: instructions and tools, which precede its first item; and the heads that tenants
used here lately."""

from hashlib import sha256

from msgspec import Raw, Struct, structs

from slipring.core.tenant_caches import TimedEntries
from slipring.protocol import wire
from slipring.protocol.requests import CreateRequest
from slipring.protocol.tools.grammars_and_schemas import Definitions
from slipring.protocol.tools.toolset import NO_TOOLS, Toolset


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


_MOST_PER_TENANT = 8
"""A request is compared with each of them."""


class KnownHeads(TimedEntries[tuple[str | None, bytes], Head]):
    """The heads that tenants used lately, by model and digest: tools that a client sends with every request
    are read once.

    A chain keeps its head itself: this is for requests without a parent. Only tools that clients run are
    known, and only for the model that they were sent for, because which others are accepted depends on that.
    Heads are kept for as long as known contexts, a few per tenant and within a bounded number of bytes. Past
    that bound, the tenant that uses the most bytes loses the head that was used longest ago.
    """

    __slots__ = ()

    def find(self, tenant: str, request: CreateRequest) -> Head | None:
        """A head with the tools of the request, and with its instructions if there is one."""
        heads = self._by_tenant.get(tenant)
        if heads is None:
            return None
        tools, found = raw_tools(request), None
        for (model, _), head in reversed(heads.items()):
            if model == request.model and head.tools.raw == tools:
                if head.instructions == request.instructions:
                    return head
                found = found or head
        return found

    def remember(self, tenant: str, model: str | None, head: Head, now: float) -> None:
        """Keep a head of a request for this model, or keep it for longer. One with tools that a server may
        have to run is not kept."""
        if not self.is_on or not head.tools.callables or not head.tools.are_clients:
            return
        key, heads = (model, head.digest), self._by_tenant.get(tenant)
        if heads is not None and key in heads:
            self._renew(tenant, key, now)
            return
        if heads is not None and len(heads) == _MOST_PER_TENANT:
            self._drop(tenant, next(iter(heads)))
        self._keep_until(tenant, {key: head}, now)

    def _hold(self, tenant: str, value: Head) -> int:
        return value.size_bytes

    _release = _hold
