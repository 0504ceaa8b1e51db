"""Which MCP servers may be called: their descriptions, and checks of their addresses."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from yarl import URL

from slipring.mcp.credentials import NO_CREDENTIAL, Credential
from slipring.mcp.limits import DEFAULT_LIMITS, McpLimits
from slipring.mcp.transports.addresses import Reach

_URL_PASSWORD = re.compile(r"://[^/?#@\s:]*:([^/?#\s]+)@")
_CREDENTIAL_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True)
class HttpServer:
    """A server at a URL."""

    name: str
    """For logs and messages: the label or the registered name."""
    url: URL = field(repr=False)
    """Not shown, because its query may contain a secret."""
    reach: Reach = Reach.PUBLIC
    """Where it may be."""
    credential: Credential = NO_CREDENTIAL
    """Of the operator, sent with every request. Headers of the caller with the same names win."""
    transport: Literal["auto", "streamable", "sse"] = "auto"
    is_modern: bool | None = None
    """Whether it speaks revision 2026-07-28; None: found out by asking."""
    parallel: int = 16
    """Calls at once per session."""
    limits: McpLimits = DEFAULT_LIMITS

    @property
    def key(self) -> str:
        """Equal for servers whose connections can be shared."""
        text = f"{self.url}\n{self.reach.name}\n{self.transport}\n{self.credential.digest}"
        return hashlib.sha256(text.encode()).hexdigest()

    def secrets(self) -> list[str]:
        """What the server knows and its callers may not: the operator's credential, and values in the URL."""
        return [*self.credential.secrets(), *self.url.query.values()]


@dataclass(frozen=True)
class StdioServer:
    """A server that slipring runs as a process. Only ever made from the configuration."""

    name: str
    command: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the few variables that every process gets."""
    cwd: str | None = None
    per_tenant: bool = True
    """Whether each tenant gets a process of its own: a process may remember what its callers sent."""
    is_modern: bool | None = None
    parallel: int = 16
    limits: McpLimits = DEFAULT_LIMITS

    @property
    def key(self) -> str:
        text = repr((self.name, self.command, sorted(self.env.items()), self.cwd))
        return hashlib.sha256(text.encode()).hexdigest()

    def secrets(self) -> list[str]:
        """What the process got from the environment because the configuration names it."""
        return list(self.env.values())

    def credentials(self) -> list[str]:
        """Those of the secrets that are credentials, by the names of their variables, and passwords in URLs.
        Others may be paths or addresses, which belong in results."""
        named = [value for name, value in self.env.items() if _CREDENTIAL_NAME.search(name)]
        return [*named, *(found[1] for value in self.env.values() for found in _URL_PASSWORD.finditer(value))]


McpServer = HttpServer | StdioServer
