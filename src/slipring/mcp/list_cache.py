"""How long a list of tools is kept, and when it counts as outdated."""

import time

from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.tools import ToolList


class CachedList:
    """The list of a server: that of one caller, or one that all callers may be given."""

    def __init__(self) -> None:
        self._tools: ToolList | None = None
        self._fresh_until = 0.0
        self.changes = 0
        """How often the server announced that its list changed."""

    def fresh(self) -> ToolList | None:
        return self._tools if time.monotonic() < self._fresh_until else None

    def unchanged(self) -> ToolList | None:
        """The list, fresh or not, unless the server has announced another one."""
        return self._tools if self._fresh_until else None

    def changed(self) -> None:
        """The server has announced another list."""
        self.changes += 1
        self._fresh_until = 0.0

    def keep(self, found: ToolList, limits: McpLimits, *, is_outdated: bool) -> None:
        """Keep a list for as long as its server says. ``is_outdated``: it changed while it was fetched."""
        ttl_s = limits.default_ttl_s if found.ttl_s is None else min(found.ttl_s, limits.max_ttl_s)
        self._tools, self._fresh_until = found, 0.0 if is_outdated else time.monotonic() + ttl_s
