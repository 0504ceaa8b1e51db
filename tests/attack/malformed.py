"""Data that is not valid HTTP: the answer has the API's format and repeats nothing of it."""

from tests.attack.sockets import Answer, upgrade
from tests.attack.stage import Registry, Stage

attack = Registry("malformed")
_SECRET = "sk-very-secret-2f81"
_AUTHORIZATION = f"Authorization: Bearer {_SECRET}"
_LIBRARIES = ("aiohttp", "python", "uvloop", "llhttp", "cython", "traceback")


def _request(first: str, *lines: str, rest: str = "") -> str:
    """Return a request with the secret in its head, built from the given lines unchanged."""
    return "\r\n".join([first, "Host: a", _AUTHORIZATION, *lines, "", rest])


def _get(*lines: str) -> str:
    return _request("GET /v1/models HTTP/1.1", *lines)


def _post(*lines: str, rest: str = "") -> str:
    return _request("POST /v1/responses HTTP/1.1", *lines, rest=rest)


_UPGRADE = ("Upgrade: websocket", "Connection: Upgrade")
_REQUESTS = {
    "no version": _request("GET /v1/models"),
    "unknown version": _request("GET /v1/models HTTP/9.9"),
    "odd method": _request("G@T /v1/models HTTP/1.1"),
    "header without colon": _get("broken line"),
    "secret in a broken line": _get(f"Authorization {_SECRET}"),
    "space before colon": _get(f"Authorization : Bearer {_SECRET}"),
    "NUL in a header": _get("X: a\0b"),
    "folded header": _get(f" folded {_SECRET}"),
    "long header": _get(f"X: {_SECRET}{'x' * 60_000}"),
    "long path": _request(f"GET /v1/{_SECRET}{'x' * 60_000} HTTP/1.1"),
    "many headers": _get(*["X: y"] * 40_000),
    "length that is no number": _post(f"Content-Length: {_SECRET}"),
    "negative length": _post("Content-Length: -1"),
    "two lengths": _post("Content-Length: 1", "Content-Length: 2", rest="ab"),
    "length and chunks": _post("Content-Length: 3", "Transfer-Encoding: chunked", rest="0\r\n\r\n"),
    "unknown transfer": _post(f"Transfer-Encoding: {_SECRET}"),
    "HTTP/2": f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{_SECRET}",
    "no request at all": f"{_SECRET}\r\n\r\n",
    "query that cannot be read": _request(f"GET /v1/responses/a?limit={_SECRET}%zz HTTP/1.1"),
    "path that cannot be read": _request(f"GET http://[::{_SECRET}/v1 HTTP/1.1"),
    "expectation": _post("Content-Length: 2", f"Expect: {_SECRET}", rest="{}"),
    "CONNECT": _request(f"CONNECT {_SECRET}:443 HTTP/1.1"),
    "TRACE": _request("TRACE /v1/models HTTP/1.1"),
}
_WITH_KEY = {
    "chunk size that is no number": _post("Transfer-Encoding: chunked", rest="zz\r\n"),
    "chunk that is too long": _post("Transfer-Encoding: chunked", rest="1\r\nabc\r\n0\r\n\r\n"),
    "huge chunk": _post("Transfer-Encoding: chunked", rest="ffffffffffffffffff\r\n"),
    "body that is no UTF-8": _post("Content-Length: 2", rest="\xff\xfe"),
    "socket without a version": _request("GET /v1/responses HTTP/1.1", *_UPGRADE),
    "socket with a bad key": _request(
        "GET /v1/responses HTTP/1.1", *_UPGRADE, "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {_SECRET}"
    ),
}


def _judge(stage: Stage, name: str, answer: Answer | None) -> None:
    """Require a refusal in the API's format or a close, which repeats nothing and names no library."""
    if answer is None:
        return
    text = (answer.head + answer.body.decode("latin-1")).lower()
    stage.check(_SECRET not in text, f"{name}: the answer repeats what was sent: {text[:300]!r}")
    for library in _LIBRARIES:
        stage.check(library not in text, f"{name}: the answer names {library}: {text[:300]!r}")
    if answer.status < 400:
        stage.check(False, f"{name}: answered {answer.status}")
    else:
        stage.check(answer.error, f"{name}: {answer.status} is not in the API's format: {text[:300]!r}")


@attack(quick=True)
async def http(stage: Stage) -> None:
    """Requests that break HTTP in one place each, with a key in them, are refused in the API's format,
    without an echo and without names of libraries."""
    for name, text in _REQUESTS.items():
        _judge(stage, name, await stage.exchange(text.encode("latin-1"), within_s=5))


@attack(quick=True)
async def http_with_key(stage: Stage) -> None:
    """The same with a valid key: invalid chunks, bodies and handshakes."""
    for name, text in _WITH_KEY.items():
        data = text.replace(_AUTHORIZATION, f"Authorization: Bearer {stage.key}").encode("latin-1")
        _judge(stage, name, await stage.exchange(data, within_s=5))


@attack(quick=True)
async def tls(stage: Stage) -> None:
    """A TLS greeting to the plain port is refused or closed, and nothing of it is logged."""
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))
    _judge(stage, "TLS", await stage.exchange(hello + b"\r\n\r\n", within_s=5))


@attack(quick=True)
async def every_refusal(stage: Stage) -> None:
    """Refusals of the application itself name no library either: unknown paths, methods, origins."""
    key = f"Authorization: Bearer {stage.key}\r\n"
    for name, text in {
        "unknown path": f"GET /wp-admin HTTP/1.1\r\nHost: a\r\n{key}\r\n",
        "wrong method": f"PUT /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 0\r\n\r\n",
        "origin": f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{key}Origin: https://evil.example\r\n\r\n",
        "no key": "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
        "parked": f"GET /slipring/parked/resp_x HTTP/1.1\r\nHost: a\r\n{key}\r\n",
        "no upgrade": f"GET /v1/responses HTTP/1.1\r\nHost: a\r\n{key}\r\n",
    }.items():
        _judge(stage, name, await stage.exchange(text.encode(), within_s=5))
    answer = await stage.exchange(upgrade(None), within_s=5)
    stage.refused(answer, (401,), code="invalid_api_key")
