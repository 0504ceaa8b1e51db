"""The state machine, driven through any order of calls and messages."""

import json
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipring.mcp.failures import ConnectionLost, Malformed, McpFailure, Outcome
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.json_rpc import decode_messages
from slipring.mcp.protocol.session import (
    LEGACY_VERSIONS,
    MODERN_VERSION,
    Abandon,
    Action,
    Agreement,
    Finish,
    McpSession,
    Report,
    Send,
    State,
)
from slipring.mcp.protocol.tools import ToolList, ToolResult

LIMITS = McpLimits(max_pages=3, max_tools=5, max_input_rounds=2, max_result_bytes=500)
ids = st.one_of(st.integers(0, 12), st.integers(0, 12).map(str), st.none(), st.text(max_size=3))
tools = st.lists(
    st.one_of(
        st.builds(
            lambda name, mark: {"name": name, "inputSchema": {"properties": {"a": mark}}},
            st.sampled_from(["a", "b", "", "c"]),
            st.sampled_from([{}, {"type": "string", "x-mcp-header": "A"}, {"x-mcp-header": ""}]),
        ),
        st.just({"name": 7}),
    ),
    max_size=4,
)
results: st.SearchStrategy[Any] = st.one_of(
    st.just({}),
    st.just([]),
    st.just({"supportedVersions": [MODERN_VERSION], "capabilities": {"tools": {"listChanged": True}}}),
    st.just({"supportedVersions": ["2025-06-18"]}),
    st.sampled_from(["2025-11-25", "2024-11-05", "1999-01-01"]).map(lambda v: {"protocolVersion": v}),
    st.builds(
        lambda tools, cursor, ttl: {"tools": tools, "nextCursor": cursor, "ttlMs": ttl},
        tools,
        st.sampled_from([None, "", "1", "2", "3", "4"]),
        st.sampled_from([None, 0, -5, 1e6]),
    ),
    st.just({"content": [{"type": "text", "text": "hi"}, {"type": "hologram"}]}),
    st.just({"content": [{"type": "text", "text": "x" * 1000}]}),
    st.sampled_from(["elicitation/create", "roots/list", "sampling/createMessage"]).map(
        lambda method: {"resultType": "input_required", "inputRequests": {"k": {"method": method}}}
    ),
    st.just({"resultType": "input_required", "requestState": "s"}),
    st.just({"resultType": "other"}),
)
errors = st.builds(
    lambda code, data: {"code": code, "message": "no", "data": data},
    st.sampled_from([-32601, -32602, -32020, -32021, -32022, -32000, 1]),
    st.sampled_from([None, {"supported": [MODERN_VERSION]}, {"supported": ["2025-11-25"]}, {"supported": 1}]),
)
methods = st.sampled_from(
    [
        "ping",
        "roots/list",
        "notifications/progress",
        "notifications/tools/list_changed",
        "notifications/cancelled",
        "odd",
    ]
)
params = st.one_of(
    st.just({}),
    st.builds(
        lambda token, progress: {"progressToken": token, "progress": progress},
        st.integers(0, 12),
        st.integers(-1, 3),
    ),
)


class Sessions(RuleBasedStateMachine):
    """Plays driver and server. Keeps book of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()
        self.ended: set[int] = set()
        self.marked: set[int] = set()
        self.requests: dict[int, tuple[int, str]] = {}
        """Of each request that was sent: its operation and method."""
        self.continued: set[int] = set()
        """Calls whose last answer was a request for input."""

    @initialize(
        is_modern=st.sampled_from([None, True, False]),
        over_http=st.booleans(),
    )
    def begin(self, is_modern: bool | None, over_http: bool) -> None:
        self.session = McpSession(LIMITS, client_version="1", is_modern=is_modern, over_http=over_http)
        self.run(*self.session.start())

    def run(self, operation: int | None, actions: list[Action]) -> None:
        if operation is not None:
            assert operation not in self.open | self.ended
            self.open.add(operation)
        for action in actions:
            match action:
                case Send(data, request_id):
                    assert self.session.state is not State.CLOSED or self.is_closing
                    self.take(data, request_id, operation)
                case Finish(finished, result):
                    self.finish(finished, result)
                case Report(reported, _):
                    assert reported in self.open
                case Abandon(request_id):
                    assert not self.session.is_pending(request_id)

    is_closing = False

    def take(self, data: bytes, request_id: int | None, operation: int | None) -> None:
        assert b"\n" not in data
        message = json.loads(data)
        assert message["jsonrpc"] == "2.0"
        if request_id is None:
            return
        assert message["id"] == request_id
        assert request_id not in self.requests
        owner = operation if operation is not None else self.answering
        assert owner in self.open
        method = message["method"]
        if method == "tools/call":
            earlier = [known for known in self.requests.values() if known == (owner, method)]
            # The rule: sent once, and again only after the server asked for input.
            assert not earlier or owner in self.continued
            self.continued.discard(owner)
        self.requests[request_id] = (owner, method)
        if self.session.agreement is not None and self.session.agreement.is_modern:
            assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN_VERSION

    def finish(self, operation: int, result: Any) -> None:
        assert operation in self.open
        self.open.discard(operation)
        self.ended.add(operation)
        was_sent = any(self.requests[request][0] == operation for request in self.marked)
        if isinstance(result, McpFailure):
            if result.outcome is Outcome.NOT_SENT and operation != 1:
                assert not was_sent
        elif operation == 1:
            assert isinstance(result, Agreement)
            assert result.version in (MODERN_VERSION, *LEGACY_VERSIONS)
        else:
            assert result is None or isinstance(result, ToolList | ToolResult)
            if isinstance(result, ToolList):
                assert len(result.tools) + len(result.left_out) <= LIMITS.max_tools

    answering = 0

    def answer(self, message: dict[str, Any], request_id: int | None) -> None:
        """Feed a response, knowing whose it is."""
        (decoded,) = decode_messages(json.dumps(message).encode())
        given = message.get("id", request_id)
        number = request_id if given is None else int(given) if str(given).isdecimal() else -1
        self.answering, method = self.requests.get(number if number is not None else -1, (0, ""))
        result = message.get("result")
        if (
            method == "tools/call"
            and isinstance(result, dict)
            and result.get("resultType") == "input_required"
        ):
            self.continued.add(self.answering)
        self.run(None, self.session.receive(decoded, request_id))

    @rule()
    def list_tools(self) -> None:
        self.run(*self.session.list_tools())

    @rule(newline=st.booleans())
    def call(self, newline: bool) -> None:
        self.run(*self.session.call_tool("a", b'{"a":\n1}' if newline else b"{}"))

    @rule()
    def listen(self) -> None:
        self.run(*self.session.listen())

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(sorted({99, *self.open} - {1})))
        self.run(None, self.session.cancel(operation, "no"))
        self.open.discard(operation)
        self.ended.add(operation)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def sent(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.requests)))
        if self.session.is_pending(request):
            self.marked.add(request)
        self.session.sent(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), result=results)
    def succeed(self, data: st.DataObject, result: Any) -> None:
        pending = sorted(filter(self.session.is_pending, self.requests)) or [0]
        request = data.draw(st.sampled_from(pending))
        self.answer({"jsonrpc": "2.0", "id": request, "result": result}, None)

    @rule(given=ids, result=results, on=st.one_of(st.none(), st.integers(1, 12)))
    def respond(self, given: Any, result: Any, on: int | None) -> None:
        self.answer({"jsonrpc": "2.0", "id": given, "result": result}, on)

    @rule(given=ids, error=errors, on=st.one_of(st.none(), st.integers(1, 12)))
    def refuse(self, given: Any, error: Any, on: int | None) -> None:
        self.answer({"jsonrpc": "2.0", "id": given, "error": error}, on)

    @rule(method=methods, given=st.one_of(st.just(msgspec.UNSET), ids), params=params)
    def ask(self, method: str, given: Any, params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if given is not msgspec.UNSET:
            message["id"] = given
        (decoded,) = decode_messages(json.dumps(message).encode())
        self.run(None, self.session.receive(decoded))

    @rule(
        request=st.integers(1, 12),
        status=st.sampled_from([302, 400, 401, 404, 405, 408, 500, 503]),
        error=st.one_of(st.none(), errors),
        in_session=st.booleans(),
    )
    def reject(self, request: int, status: int, error: Any, in_session: bool) -> None:
        message = None
        if error is not None:
            (message,) = decode_messages(json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode())
        self.answering = self.requests.get(request, (0, ""))[0]
        self.run(None, self.session.rejected(request, status, message, in_session=in_session))

    @rule(request=st.integers(1, 12))
    def fail(self, request: int) -> None:
        self.run(None, self.session.failed(request, Malformed("bad")))

    @rule()
    def probe_timed_out(self) -> None:
        self.answering = 1
        self.run(None, self.session.probe_timed_out())

    @rule()
    def closed(self) -> None:
        self.is_closing = True
        self.run(None, self.session.closed(ConnectionLost))
        assert not self.open

    @invariant()
    def only_open_operations_have_requests(self) -> None:
        for request, (operation, _) in self.requests.items():
            if self.session.is_pending(request):
                assert operation in self.open


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestSessions = Sessions.TestCase


def started(**how: Any) -> McpSession:
    session = McpSession(McpLimits(), client_version="1", **how)
    _, actions = session.start()
    (send,) = actions
    assert isinstance(send, Send)
    session.sent(send.request_id or 0)
    return session


def feed(session: McpSession, message: dict[str, Any]) -> list[Action]:
    (decoded,) = decode_messages(json.dumps({"jsonrpc": "2.0", **message}).encode())
    return session.receive(decoded)


def test_pages_are_collected_in_order_and_an_empty_cursor_is_one() -> None:
    session = started(is_modern=True)
    feed(session, {"id": 1, "result": {"supportedVersions": [MODERN_VERSION]}})
    operation, _ = session.list_tools()
    one, two = ({"name": name, "inputSchema": {}} for name in ("one", "two"))
    (send,) = feed(session, {"id": 2, "result": {"tools": [one], "nextCursor": "", "ttlMs": 5000}})
    assert isinstance(send, Send)
    assert json.loads(send.data)["params"]["cursor"] == ""
    (finish,) = feed(session, {"id": 3, "result": {"tools": [two], "ttlMs": 1000, "cacheScope": "public"}})
    assert isinstance(finish, Finish)
    assert finish.operation == operation
    assert isinstance(finish.result, ToolList)
    assert [tool.name for tool in finish.result.tools] == ["one", "two"]
    # As fresh as its stalest page; public only if every page is.
    assert (finish.result.ttl_s, finish.result.scope) == (1.0, "private")


def test_batches_of_the_third_revision_are_read() -> None:
    messages = decode_messages(b'[{"jsonrpc":"2.0","method":"a"}, {"jsonrpc":"2.0","id":1,"result":{}}]')
    assert [message.is_response for message in messages] == [False, True]


def test_a_handshake_is_not_cancelled_at_the_server() -> None:
    session = started(is_modern=False, over_http=False)
    assert session.cancel(1, "too slow") == [Abandon(1)]


def test_a_call_that_was_sent_is_cancelled_in_words_on_a_shared_channel() -> None:
    session = started(is_modern=False, over_http=False)
    feed(session, {"id": 1, "result": {"protocolVersion": "2025-06-18"}})
    operation, _ = session.call_tool("a", b"{}")
    assert session.outcome_if_lost(operation) is Outcome.NOT_SENT
    session.sent(2)
    assert session.outcome_if_lost(operation) is Outcome.UNKNOWN
    _, send = session.cancel(operation, "why")
    assert isinstance(send, Send)
    assert json.loads(send.data)["params"] == {"requestId": 2, "reason": "why"}
    assert feed(session, {"id": 2, "result": {"content": []}}) == []


def test_a_slow_server_of_the_newer_era_is_recognised_after_the_probe_timed_out() -> None:
    session = started(over_http=False)
    (send,) = session.probe_timed_out()
    assert isinstance(send, Send)
    assert json.loads(send.data)["method"] == "initialize"
    (finish,) = feed(session, {"id": 1, "result": {"supportedVersions": [MODERN_VERSION]}})
    assert isinstance(finish, Finish)
    assert isinstance(finish.result, Agreement)
    assert finish.result.is_modern
    assert feed(session, {"id": 2, "error": {"code": -32601, "message": "unknown"}}) == []
