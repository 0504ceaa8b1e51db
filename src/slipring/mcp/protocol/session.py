"""One connection to an MCP server, as a state machine without I/O, and what it tells its driver to do."""

import enum
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    InputRequired,
    Malformed,
    McpFailure,
    NoStreamableHttp,
    Outcome,
    ProtocolFailure,
    SessionExpired,
    VersionMismatch,
)
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol import json_rpc
from slipring.mcp.protocol.json_rpc import Message
from slipring.mcp.protocol.param_headers import ParamHeader, header_value, mirrored
from slipring.mcp.protocol.tools import ListInProgress, ToolList, ToolResult, WantsInput, read_result


class Agreement(NamedTuple):
    """What client and server agreed on."""

    is_modern: bool
    """Whether the server speaks revision 2026-07-28 or newer: no handshake and no sessions."""
    version: str
    announces_tool_changes: bool


class ProgressUpdate(NamedTuple):
    """How far a call is, as its server reports it."""

    progress: float
    total: float | None
    message: str | None


class Send(NamedTuple):
    """Send this message. Before any byte of a request leaves, call ``sent`` of the state machine."""

    data: bytes
    request_id: int | None
    """None for notifications and replies, which have no answer."""
    headers: tuple[tuple[str, str], ...]
    """Of the HTTP request, if the message is one."""


class Abandon(NamedTuple):
    """No caller waits for this request any more: close the stream of its response."""

    request_id: int


class Report(NamedTuple):
    """Hand the progress of an operation to its caller."""

    operation: int
    update: ProgressUpdate


class Finish(NamedTuple):
    """An operation has ended. Every operation ends exactly once, unless it is cancelled."""

    operation: int
    result: Agreement | ToolList | ToolResult | McpFailure | None
    """None: a subscription that its server ended."""


class ToolsChanged(NamedTuple):
    """The server's list of tools is no longer what it was."""


class Subscribed(NamedTuple):
    """The server announces changes from now on, in revision 2026-07-28."""


Action = Send | Abandon | Report | Finish | ToolsChanged | Subscribed


MODERN_VERSION = "2026-07-28"
LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

_META = "io.modelcontextprotocol/"
_NOT_LEGACY_STATUSES = frozenset({401, 402, 403, 407, 429, 502, 503, 504})
"""To a probe, these say nothing about the protocol: the older handshake would get the same answer."""
_NOT_STREAMABLE_STATUSES = frozenset({400, 404, 405})
_MODERN_ERRORS = frozenset({json_rpc.HEADER_MISMATCH, json_rpc.MISSING_CAPABILITY})
_MAX_PROGRESS_CHARACTERS = 1000
_MOST_DIGITS = 18
_EMPTY: dict[str, Any] = {}
_LOST = "the connection to the MCP server ended before the answer"


class State(enum.Enum):
    NEW = "new"
    PROBING = "probing"
    INITIALIZING = "initializing"
    READY = "ready"
    CLOSED = "closed"


class _Capability(msgspec.Struct, rename="camel"):
    list_changed: bool | None = None


class _Capabilities(msgspec.Struct):
    tools: _Capability | None = None


class _Discovered(msgspec.Struct, rename="camel"):
    supported_versions: list[str]
    capabilities: _Capabilities = msgspec.field(default_factory=_Capabilities)


class _Initialized(msgspec.Struct, rename="camel"):
    protocol_version: str
    capabilities: _Capabilities = msgspec.field(default_factory=_Capabilities)


class _Supported(msgspec.Struct):
    supported: list[str] = msgspec.field(default_factory=list)


class _ProgressParams(msgspec.Struct, rename="camel"):
    progress_token: int | str
    progress: float
    total: float | None = None
    message: str | None = None


_discovered = msgspec.json.Decoder(_Discovered)
_initialized = msgspec.json.Decoder(_Initialized)
_supported = msgspec.json.Decoder(_Supported)
_progress = msgspec.json.Decoder(_ProgressParams)
_any = msgspec.json.Decoder()


@dataclass
class _Operation:
    id: int
    request_id: int = -1
    was_sent: bool = False

    @property
    def outcome_if_lost(self) -> Outcome:
        return Outcome.UNKNOWN if self.was_sent else Outcome.NOT_SENT


@dataclass
class _Handshake(_Operation):
    retries: int = 0


@dataclass
class _Listing(_Operation):
    pages: ListInProgress = field(kw_only=True)


@dataclass
class _Call(_Operation):
    tool: str = field(kw_only=True)
    arguments: msgspec.Raw = field(kw_only=True)
    headers: tuple[tuple[str, str], ...] = field(kw_only=True)
    rounds: int = 0
    last_progress: float = -math.inf


@dataclass
class _Subscription(_Operation):
    pass


class McpSession:
    """The state machine. ``agreement`` is set when the handshake has ended well."""

    def __init__(
        self,
        limits: McpLimits,
        *,
        client_version: str,
        is_modern: bool | None = None,
        agreement: Agreement | None = None,
        over_http: bool = True,
    ) -> None:
        """``is_modern``: the era of the server, if it is known. ``agreement``: what a server of the newer era
        said of itself earlier, so that it is not asked again. ``over_http``: requests have headers, and a
        request is cancelled by closing its response instead of by a notification."""
        assert agreement is None or agreement.is_modern
        self._limits = limits
        self._client = {"name": "slipring", "version": client_version}
        self._is_modern = is_modern
        self._over_http = over_http
        self._operations: dict[int, _Operation] = {}
        self._by_request: dict[int, _Operation] = {}
        self._late_probe = 0
        """The request of a probe that timed out, whose answer still counts."""
        self._next_operation = 0
        self._next_request = 0
        self.state = State.NEW if agreement is None else State.READY
        self.agreement = agreement

    # What the driver asks for. Each returns the operation's number and the first actions.

    def start(self) -> tuple[int, list[Action]]:
        """Begin the handshake; it finishes with an ``Agreement`` or a failure."""
        assert self.state is State.NEW
        operation = self._begin(_Handshake(self._number()))
        return operation.id, (self._initialize if self._is_modern is False else self._probe)(operation)

    def list_tools(self) -> tuple[int, list[Action]]:
        """Fetch all pages of the tools; it finishes with a ``ToolList`` or a failure."""
        marks = self._over_http and self._speaks_modern
        pages = ListInProgress(self._limits, check_marks=marks)
        operation = self._begin(_Listing(self._number(), pages=pages))
        return operation.id, self._request(operation, "tools/list", {})

    def call_tool(
        self, name: str, arguments: bytes, param_headers: tuple[ParamHeader, ...] = ()
    ) -> tuple[int, list[Action]]:
        """Call a tool with an encoded JSON object; it finishes with a ``ToolResult`` or a failure."""
        if b"\n" in arguments or b"\r" in arguments:
            arguments = msgspec.json.format(arguments, indent=-1)  # a message is one line
        headers = mirrored(param_headers, _any.decode(arguments)) if param_headers else []
        call = _Call(
            self._number(),
            tool=name,
            arguments=msgspec.Raw(arguments),
            headers=(("Mcp-Name", header_value(name)), *headers),
        )
        self._begin(call)
        return call.id, self._send_call(call, _EMPTY)

    def listen(self) -> tuple[int, list[Action]]:
        """Subscribe to changes of the list, in revision 2026-07-28; it finishes when the server ends it."""
        operation = self._begin(_Subscription(self._number()))
        return operation.id, self._request(
            operation, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
        )

    def outcome_if_lost(self, operation: int) -> Outcome:
        """What would be known about an operation if no more was heard of it."""
        found = self._operations.get(operation)
        return Outcome.UNKNOWN if found is None else found.outcome_if_lost

    def cancel(self, operation: int, reason: str) -> list[Action]:
        """Give an operation up and tell the server. It finishes with nothing; late answers are ignored."""
        found = self._operations.get(operation)
        if found is None:
            return []
        self._end(found)
        actions: list[Action] = [Abandon(found.request_id)]
        # The protocol forbids to cancel a handshake. Over HTTP, a closed response is the newer revision's
        # cancellation, and means nothing to older ones.
        must_notify = not (self._over_http and self._speaks_modern)
        if must_notify and found.was_sent and not isinstance(found, _Handshake):
            params = {"requestId": found.request_id, "reason": reason}
            actions.append(self._unanswered(method="notifications/cancelled", params=params))
        return actions

    # What the driver reports.

    def sent(self, request_id: int) -> None:
        """The first byte of a request is about to leave."""
        if (operation := self._by_request.get(request_id)) is not None:
            operation.was_sent = True

    def is_pending(self, request_id: int) -> bool:
        """Whether an answer to this request is still of use."""
        return request_id in self._by_request

    def receive(self, message: Message, request_id: int | None = None) -> list[Action]:
        """Take a message of the server; ``request_id``: it came on this request's own response."""
        if self.state is State.CLOSED:
            return []
        if message.is_response:
            return self._receive_response(message, request_id)
        if message.id is msgspec.UNSET or message.id is None:
            return self._receive_notification(message)
        return self._receive_request(message, message.id)

    def rejected(
        self, request_id: int, status: int, error: Message | None = None, *, in_session: bool = False
    ) -> list[Action]:
        """A request got an HTTP error. ``error``: the JSON-RPC message in its body, if it is one.
        ``in_session``: the request named a session."""
        operation = self._by_request.get(request_id)
        if operation is None:
            return []
        is_anonymous = error is None or error.id is msgspec.UNSET or error.id is None
        # Many servers of the older revisions reject an unknown session with 400 instead of 404, in an error
        # that has no id because they did not look at the request.
        if in_session and (status == 404 or (status == 400 and error is not None and is_anonymous)):
            return self._finish(operation, SessionExpired(status, outcome=Outcome.REFUSED))
        if error is not None and error.error is not None and not isinstance(operation, _Handshake):
            return self._finish(operation, ProtocolFailure(error.error.code, error.error.text))
        if isinstance(operation, _Handshake):
            return self._handshake_rejected(operation, status, error)
        return self._finish(operation, HttpRejected(status))

    def failed(self, request_id: int, failure: McpFailure) -> list[Action]:
        """A request failed in the transport: not connected, response ended or not readable."""
        operation = self._by_request.get(request_id)
        if operation is None:
            return []
        return self._finish(operation, failure.settle(operation.outcome_if_lost))

    def probe_timed_out(self) -> list[Action]:
        """A server on a shared channel does not answer the probe: it is an old one."""
        if self.state is not State.PROBING:
            return []
        (handshake,) = [found for found in self._operations.values() if isinstance(found, _Handshake)]
        self._late_probe = handshake.request_id
        return self._initialize(handshake)

    def closed(self, kind: type[McpFailure] = ConnectionLost, reason: str = _LOST) -> list[Action]:
        """The connection is gone: every operation ends with this failure. Nothing is sent any more."""
        self.state = State.CLOSED
        actions: list[Action] = []
        for operation in list(self._operations.values()):
            actions += self._finish(operation, kind(reason, operation.outcome_if_lost))
        return actions

    @property
    def is_initializing(self) -> bool:
        """Whether the answer to ``initialize`` is awaited, which may name a session."""
        return self.state is State.INITIALIZING

    # Operations and requests.

    @property
    def _speaks_modern(self) -> bool:
        return self.agreement is not None and self.agreement.is_modern

    def _number(self) -> int:
        self._next_operation += 1
        return self._next_operation

    def _begin(self, operation: _Operation) -> _Operation:
        self._operations[operation.id] = operation
        return operation

    def _end(self, operation: _Operation) -> None:
        self._operations.pop(operation.id, None)
        self._by_request.pop(operation.request_id, None)

    def _finish(self, operation: _Operation, result: Any) -> list[Action]:
        self._end(operation)
        return [Finish(operation.id, result)]

    def _request(
        self,
        operation: _Operation,
        method: str,
        params: dict[str, Any],
        headers: tuple[tuple[str, str], ...] = (),
    ) -> list[Action]:
        """Send the next request of an operation, under a new id."""
        is_handshake = isinstance(operation, _Handshake)
        if self.state is State.CLOSED or (self.state is not State.READY and not is_handshake):
            return self._finish(operation, ConnectionLost(_LOST, operation.outcome_if_lost))
        self._by_request.pop(operation.request_id, None)
        self._next_request += 1
        operation.request_id = self._next_request
        self._by_request[operation.request_id] = operation
        meta: dict[str, Any] = {}
        if isinstance(operation, _Call):
            meta["progressToken"] = operation.request_id
        modern = self.state is State.PROBING or self._speaks_modern
        if modern:
            meta[f"{_META}protocolVersion"] = MODERN_VERSION
            meta[f"{_META}clientInfo"] = self._client
            meta[f"{_META}clientCapabilities"] = {}
            headers = (("Mcp-Method", method), *headers)
        else:
            headers = ()
        if meta:
            params = {**params, "_meta": meta}
        data = json_rpc.encode(id=operation.request_id, method=method, params=params)
        return [Send(data, operation.request_id, (*self._version_header(), *headers))]

    def _version_header(self) -> tuple[tuple[str, str], ...]:
        if self.state is State.PROBING:
            return (("MCP-Protocol-Version", MODERN_VERSION),)
        return () if self.agreement is None else (("MCP-Protocol-Version", self.agreement.version),)

    def _unanswered(self, **fields: Any) -> Send:
        """A message that has no answer: a notification, or a reply."""
        return Send(json_rpc.encode(**fields), None, self._version_header())

    # The handshake.

    def _probe(self, operation: _Operation) -> list[Action]:
        self.state = State.PROBING
        return self._request(operation, "server/discover", {})

    def _initialize(self, operation: _Operation) -> list[Action]:
        self.state = State.INITIALIZING
        params = {"protocolVersion": LEGACY_VERSIONS[0], "capabilities": {}, "clientInfo": self._client}
        return self._request(operation, "initialize", params)

    def _handshake_rejected(
        self, operation: _Handshake, status: int, message: Message | None
    ) -> list[Action]:
        if self.state is State.PROBING:
            if message is not None and message.error is not None:
                return self._handshake_answered(operation, message)
            if status in _NOT_LEGACY_STATUSES or status < 400:
                return self._finish(operation, HttpRejected(status))
            return self._fall_back(operation, HttpRejected(status))
        if status in _NOT_STREAMABLE_STATUSES:
            return self._finish(operation, NoStreamableHttp(status))
        if message is not None and message.error is not None:
            return self._handshake_answered(operation, message)
        return self._finish(operation, HttpRejected(status))

    def _fall_back(self, operation: _Handshake, failure: McpFailure) -> list[Action]:
        """Try the older handshake, unless the server is known to speak the newer revision."""
        return self._finish(operation, failure) if self._is_modern else self._initialize(operation)

    def _handshake_answered(self, operation: _Handshake, message: Message) -> list[Action]:
        probing = self.state is State.PROBING
        if message.error is not None:
            failure = ProtocolFailure(message.error.code, message.error.text)
            if not probing or message.error.code in _MODERN_ERRORS:
                return self._finish(operation, failure)
            if message.error.code == json_rpc.UNSUPPORTED_VERSION:
                return self._probe_again(operation, message.error.data)
            return self._fall_back(operation, failure)
        assert not isinstance(message.result, msgspec.UnsetType)
        return (self._discovered if probing else self._initialized)(operation, message.result)

    def _probe_again(self, operation: _Handshake, data: msgspec.Raw) -> list[Action]:
        """Use a version from the list that came with the rejection."""
        try:
            supported = _supported.decode(data).supported
        except (msgspec.DecodeError, RecursionError):
            supported = []
        operation.retries += 1
        if MODERN_VERSION in supported and operation.retries == 1:
            return self._probe(operation)
        if self._is_modern is None and set(supported) & set(LEGACY_VERSIONS):
            return self._initialize(operation)
        return self._finish(operation, _no_common_version())

    def _discovered(self, operation: _Handshake, result: msgspec.Raw) -> list[Action]:
        try:
            found = _discovered.decode(result)
        except (msgspec.DecodeError, RecursionError):
            # Some old servers answer every method with an empty result.
            return self._fall_back(operation, Malformed("the MCP server's description of itself is invalid"))
        if MODERN_VERSION not in found.supported_versions:
            if self._is_modern is None and set(found.supported_versions) & set(LEGACY_VERSIONS):
                return self._initialize(operation)
            return self._finish(operation, _no_common_version())
        return self._agree(operation, True, MODERN_VERSION, found.capabilities)

    def _initialized(self, operation: _Handshake, result: msgspec.Raw) -> list[Action]:
        try:
            found = _initialized.decode(result)
        except (msgspec.DecodeError, RecursionError):
            failure = Malformed("the MCP server's answer to initialize is invalid")
            return self._finish(operation, failure.settle(operation.outcome_if_lost))
        if found.protocol_version not in LEGACY_VERSIONS:
            return self._finish(operation, _no_common_version())
        finish = self._agree(operation, False, found.protocol_version, found.capabilities)
        return [self._unanswered(method="notifications/initialized"), *finish]

    def _agree(
        self, operation: _Handshake, is_modern: bool, version: str, capabilities: _Capabilities
    ) -> list[Action]:
        tools = capabilities.tools
        self.agreement = Agreement(is_modern, version, tools is not None and bool(tools.list_changed))
        self.state = State.READY
        return self._finish(operation, self.agreement)

    # Responses.

    def _receive_response(self, message: Message, request_id: int | None) -> list[Action]:
        answered = message.id
        if answered is msgspec.UNSET or answered is None:
            # An error whose request the server could not read. On a shared channel it belongs to no request.
            answered = request_id
        operation = self._by_request.get(_own_id(answered))
        if operation is None and self._late_probe and _own_id(answered) == self._late_probe:
            return self._receive_late_probe(message)
        if operation is None:
            return []
        if isinstance(operation, _Handshake):
            return self._handshake_answered(operation, message)
        if message.error is not None:
            return self._finish(operation, ProtocolFailure(message.error.code, message.error.text))
        assert not isinstance(message.result, msgspec.UnsetType)
        try:
            return self._result(operation, message.result)
        except McpFailure as failure:
            return self._finish(operation, failure.settle(Outcome.UNKNOWN))

    def _receive_late_probe(self, message: Message) -> list[Action]:
        """A server of the newer era that took long to start has answered the probe after all."""
        self._late_probe = 0
        handshakes = [found for found in self._operations.values() if isinstance(found, _Handshake)]
        if self.state is not State.INITIALIZING or isinstance(message.result, msgspec.UnsetType):
            return []
        try:
            versions = _discovered.decode(message.result).supported_versions
        except (msgspec.DecodeError, RecursionError):
            return []
        if MODERN_VERSION not in versions or not handshakes:
            return []
        return self._discovered(handshakes[0], message.result)

    def _result(self, operation: _Operation, result: msgspec.Raw) -> list[Action]:
        if isinstance(operation, _Listing):
            cursor = operation.pages.add(result)
            if cursor is not None:
                return self._request(operation, "tools/list", {"cursor": cursor})
            return self._finish(operation, operation.pages.finished())
        if isinstance(operation, _Call):
            found = read_result(result, self._limits.max_result_bytes)
            if isinstance(found, WantsInput):
                return self._decline_input(operation, found)
            return self._finish(operation, found)
        return self._finish(operation, None)

    def _send_call(self, call: _Call, more: dict[str, Any]) -> list[Action]:
        params = {"name": call.tool, "arguments": call.arguments, **more}
        return self._request(call, "tools/call", params, call.headers)

    def _decline_input(self, call: _Call, wanted: WantsInput) -> list[Action]:
        """Continue a call that asks for input: questions to the user are declined, there are no roots."""
        call.rounds += 1
        answers: dict[str, Any] = {}
        for key, method in wanted.requests.items():
            if method == "elicitation/create":
                answers[key] = {"action": "decline"}
            elif method == "roots/list":
                answers[key] = {"roots": []}
            else:
                raise InputRequired("the tool asked for input that is not available here")
        if call.rounds > self._limits.max_input_rounds:
            raise InputRequired("the tool asked for input too often")
        more: dict[str, Any] = {"inputResponses": answers} if answers else {}
        if wanted.state is not None:
            more["requestState"] = wanted.state
        return self._send_call(call, more)

    # What the server sends by itself.

    def _receive_request(self, message: Message, request_id: int | str) -> list[Action]:
        """Decline what the server wants of its client. Revision 2026-07-28 has no such requests."""
        if self._speaks_modern or self.state is State.PROBING:
            return []
        if message.method == "ping":
            return [self._unanswered(id=request_id, result={})]
        error = {"code": json_rpc.METHOD_NOT_FOUND, "message": "Method not found"}
        return [self._unanswered(id=request_id, error=error)]

    def _receive_notification(self, message: Message) -> list[Action]:
        if message.method == "notifications/tools/list_changed":
            return [ToolsChanged()]
        if message.method == "notifications/subscriptions/acknowledged":
            return [Subscribed()]
        if message.method == "notifications/progress" and not isinstance(message.params, msgspec.UnsetType):
            return self._receive_progress(message.params)
        return []

    def _receive_progress(self, params: msgspec.Raw) -> list[Action]:
        try:
            found = _progress.decode(params)
        except (msgspec.DecodeError, RecursionError):
            return []
        call = self._by_request.get(_own_id(found.progress_token))
        # The protocol demands that progress increases.
        if not isinstance(call, _Call) or not found.progress > call.last_progress:
            return []
        call.last_progress = found.progress
        message = None if found.message is None else found.message[:_MAX_PROGRESS_CHARACTERS]
        return [Report(call.id, ProgressUpdate(found.progress, found.total, message))]


def _no_common_version() -> VersionMismatch:
    return VersionMismatch("the MCP server speaks no version of the protocol that slipring speaks")


def _own_id(given: int | str | None) -> int:
    """Our ids are numbers; some servers return them as text."""
    if isinstance(given, str):
        return int(given) if given.isdecimal() and len(given) <= _MOST_DIGITS else -1
    return -1 if given is None else given
