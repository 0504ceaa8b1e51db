"""The MCP servers that requests may use: those that the operator registered, and URLs of clients if allowed.

A server that a key may not use does not exist for its callers.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from yarl import URL

from slipring.base.errors import PermissionDenied, StartupError, quoted
from slipring.config.settings import Config
from slipring.config.tables import BuiltinMapping, McpRegistration
from slipring.core.generation import UpstreamTools
from slipring.core.limits import Limits
from slipring.mcp.credentials import Credential
from slipring.mcp.failures import RequestRefused
from slipring.mcp.limits import McpLimits
from slipring.mcp.servers import HttpServer, McpServer, StdioServer
from slipring.mcp.transports.addresses import Reach, RegisteredAddresses
from slipring.mcp.url_policy import UrlPolicy, admit, parse_url
from slipring.protocol.tools.mcp_tools import McpTool
from slipring.protocol.tools.tool_types import BuiltinKind
from slipring.server.access.auth import Caller
from slipring.stores.keys import Key

_ENVELOPE_BYTES = 64 * 1024
"""Of a message, around its result."""


class ServerRefused(Exception):
    """A request names a server that it may not use, or sends what it may not send there. ``field`` is the
    field of the ``mcp`` tool that is to blame; the message contains no value of the request."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


@dataclass(frozen=True)
class Target:
    """A server that a request may use, and what is sent there. Its ``repr`` has no secret."""

    server: McpServer
    credential: Credential
    """Of this request."""
    name: str | None
    """The registered name; None: a URL of the client."""
    permitted: frozenset[str] | None
    """The tools that operator and key permit; None: all."""
    always_approve: bool = False
    goes_on: bool = False
    """Whether a request goes on without the tools of this server if they cannot be listed."""

    @property
    def identity(self) -> str:
        """Equal for requests that get the same list: the server, and the credentials of the request. A
        registered server is the same under its name when the operator moves it."""
        where = str(self.server.url) if self.name is None and isinstance(self.server, HttpServer) else ""
        text = repr((self.name, where, self.credential.digest))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class _Registered:
    server: McpServer
    registration: McpRegistration


class Registry:
    """The registered servers, and the policy for all others."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        """Raises ``StartupError`` for a server that cannot be used, by its name."""
        self._policy = UrlPolicy(config.mcp_urls)
        self._limits = _limits(config.limits)
        self._servers = {each.name: self._registered(each, environ) for each in config.mcp}
        self._builtins = {each.type: each for each in config.builtin_tools}
        self.reserved = RegisteredAddresses(
            each.server.url
            for each in self._servers.values()
            if isinstance(each.server, HttpServer) and each.registration.has_rules
        )
        """Where URLs of clients must not lead."""

    @property
    def names(self) -> tuple[str, ...]:
        """The registered names, in the order of the configuration."""
        return tuple(self._servers)

    def secrets(self) -> list[str]:
        """What only the operator and the registered servers know."""
        return [secret for each in self._servers.values() for secret in each.server.secrets()]

    def find(self, tool: McpTool, key: Key | None) -> Target:
        """The server that a tool of a request names. Raises ``ServerRefused``."""
        usable = {name: each for name, each in self._servers.items() if _may_use(key, name)}
        if tool.server_url is not None:
            return self._find_url(tool, tool.server_url, usable, key)
        field = "server_label" if tool.connector_id is None else "connector_id"
        registered = usable.get(tool.connector_id or tool.server_label)
        if registered is None:
            raise ServerRefused(field, "no MCP server with this name is registered here")
        return _target(registered, tool, key)

    def answering(self, kind: BuiltinKind, key: Key | None) -> tuple[Target, BuiltinMapping] | None:
        """The tool that answers a built-in type; None if there is none that the key may use."""
        mapping = self._builtins.get(kind)
        if mapping is None or not _may_use(key, mapping.server):
            return None
        target = _target(self._servers[mapping.server], McpTool(mapping.server), key)
        is_permitted = target.permitted is None or mapping.tool in target.permitted
        return (target, mapping) if is_permitted else None

    def _find_url(
        self, tool: McpTool, url: str, usable: Mapping[str, _Registered], key: Key | None
    ) -> Target:
        # A key with permissions has them for registered servers.
        is_bound = key is not None and key.limits_mcp
        policy = UrlPolicy.REGISTERED if is_bound else self._policy
        try:
            wanted = parse_url(url)
            same = [each for each in usable.values() if _is_at(each.server, wanted)]
            if same:
                # One URL may be registered several times, with different credentials: the label then chooses.
                labelled = [each for each in same if each.server.name == tool.server_label]
                return _target((labelled or same)[0], tool, key)
            found = admit(tool.server_label, wanted, policy, self._limits, self.reserved)
        except RequestRefused as refusal:
            raise ServerRefused("server_url", refusal.message) from None
        return Target(found, _credential(tool), name=None, permitted=None)

    def _registered(self, registration: McpRegistration, environ: Mapping[str, str]) -> _Registered:
        limits = replace(
            self._limits,
            call_timeout_s=registration.timeout_s,
            call_total_s=max(self._limits.call_total_s, registration.timeout_s),
        )
        try:
            server = _server(registration, limits, environ)
        except RequestRefused as refusal:
            raise StartupError(f"mcp server '{registration.name}': {refusal.message}") from None
        return _Registered(server, registration)


def _limits(limits: Limits) -> McpLimits:
    """The limits of every server: messages may be as large as a list or a result, and not much larger."""
    known = McpLimits()
    message = max(known.max_list_bytes, limits.max_tool_result_bytes) + _ENVELOPE_BYTES
    return McpLimits(
        max_result_bytes=limits.max_tool_result_bytes,
        max_message_bytes=message,
        max_stream_bytes=max(known.max_stream_bytes, 2 * message),
    )


def _server(registration: McpRegistration, limits: McpLimits, environ: Mapping[str, str]) -> McpServer:
    name = registration.name
    if registration.command:
        return StdioServer(
            name=name,
            command=registration.command,
            env={variable: _value(name, variable, environ) for variable in registration.env},
            cwd=registration.cwd or None,
            per_tenant=registration.per_tenant,
            parallel=registration.parallel,
            limits=limits,
        )
    headers = {
        each.header: f"{each.scheme} {_value(name, each.variable, environ)}".lstrip()
        for each in registration.headers
    }
    return HttpServer(
        name=name,
        url=parse_url(registration.url),
        reach=Reach.ALL,
        credential=Credential(headers=headers),
        transport=registration.transport,
        parallel=registration.parallel,
        limits=limits,
    )


def _value(name: str, variable: str, environ: Mapping[str, str]) -> str:
    value = environ.get(variable)
    if value is None:
        raise StartupError(f"mcp server '{name}': the environment variable {variable} is not set")
    return value


def _is_at(server: McpServer, url: URL) -> bool:
    return isinstance(server, HttpServer) and _place(server.url) == _place(url)


def _place(url: URL) -> tuple[str, str | None, int | None, str]:
    """What a URL leads to: a usual port may be spelled out or not."""
    return url.scheme, url.host, url.port, url.raw_path_qs


def _may_use(key: Key | None, name: str) -> bool:
    return key is None or key.mcp_servers is None or name in key.mcp_servers


def _target(registered: _Registered, tool: McpTool, key: Key | None) -> Target:
    registration = registered.registration
    if isinstance(registered.server, StdioServer):
        for field in ("authorization", "headers"):
            if getattr(tool, field):
                raise ServerRefused(field, "this MCP server is a process, which cannot be sent headers")
    else:
        _require_free(registered.server, tool.headers or {})
    return Target(
        server=registered.server,
        credential=_credential(tool),
        name=registration.name,
        permitted=_permitted(registration, key),
        always_approve=registration.approval == "always",
        goes_on=registration.on_list_error == "continue",
    )


def _require_free(server: HttpServer, headers: Mapping[str, str]) -> None:
    """Refuse headers that the operator sets: a server may trust them. A token of the caller proves only who
    the caller is."""
    set_here = {name.lower() for name in server.credential.headers} - {"authorization"}
    for name in headers:
        if name.lower() in set_here:
            raise ServerRefused("headers", "one of these headers is set by the operator of this server")


def _permitted(registration: McpRegistration, key: Key | None) -> frozenset[str] | None:
    lists: list[Iterable[str]] = []
    if registration.allowed_tools:
        lists.append(registration.allowed_tools)
    prefix = f"{registration.name}."
    of_key = [each.removeprefix(prefix) for each in (key.mcp_tools if key else ()) if each.startswith(prefix)]
    if of_key:
        lists.append(of_key)
    return frozenset.intersection(*map(frozenset, lists)) if lists else None


def _credential(tool: McpTool) -> Credential:
    try:
        Credential(tool.authorization)
    except RequestRefused:
        raise ServerRefused("authorization", "it is empty or has characters that are not allowed") from None
    try:
        return Credential(tool.authorization, tool.headers)
    except RequestRefused as refusal:
        raise ServerRefused("headers", refusal.message) from None


def require_unbound(caller: Caller, tools: UpstreamTools) -> None:
    """Refuse tools of the engine's server to a key that is limited to MCP servers or tools: its permissions
    are for servers that are registered here, and that server would not apply them."""
    if not tools.labels or caller.key is None or not caller.key.limits_mcp:
        return
    raise PermissionDenied(
        f"The MCP server {quoted(tools.labels[0])} would be called by the server of this model, where the"
        " limits of your API key do not apply.",
        param="tools",
    )
