"""What is not HTTP, or almost: the answer is in the API's shape and repeats nothing."""

from tests.attack.sockets import Answer, upgrade
from tests.attack.stage import Registry, Stage

attack = Registry("malformed")
_SECRET = "sk-very-secret-2f81"
_AUTHORIZATION = f"Authorization: Bearer {_SECRET}\r\n"
_LIBRARIES = ("aiohttp", "python", "uvloop", "llhttp", "cython", "traceback")
_REQUESTS = {
    "no version": f"GET /v1/models\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "unknown version": f"GET /v1/models HTTP/9.9\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "odd method": f"G@T /v1/models HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "header without colon": f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}broken line\r\n\r\n",
    "secret within the broken line": f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization {_SECRET}\r\n\r\n",
    "space before colon": f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization : Bearer {_SECRET}\r\n\r\n",
    "NUL in a header": f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}X: a\0b\r\n\r\n",
    "folded header": f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION} folded {_SECRET}\r\n\r\n",
    "long header": f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {_SECRET}{'x' * 60_000}\r\n\r\n",
    "long path": f"GET /v1/{_SECRET}{'x' * 60_000} HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "many headers": f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}" + "X: y\r\n" * 40_000 + "\r\n",
    "length that is no number": f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}Content-Length: {_SECRET}\r\n\r\n",
    "negative length": f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}Content-Length: -1\r\n\r\n",
    "two lengths": f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "unknown transfer": f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}Transfer-Encoding: {_SECRET}\r\n\r\n",
    "HTTP/2": f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{_SECRET}",
    "absolute nonsense": f"{_SECRET}\r\n\r\n",
    "query that cannot be read": f"GET /v1/responses/a?limit={_SECRET}%zz HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "path that cannot be read": f"GET http://[::{_SECRET}/v1 HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "expectation": f"POST /v1/responses HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}Content-Length: 2\r\nExpect: {_SECRET}\r\n\r\n{{}}",
    "CONNECT": f"CONNECT {_SECRET}:443 HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
    "TRACE": f"TRACE /v1/models HTTP/1.1\r\nHost: a\r\n{_AUTHORIZATION}\r\n",
}
_WITH_KEY = {
    "chunk size that is no number": "POST /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk that is too long": "POST /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "huge chunk": "POST /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "body that is no UTF-8": "POST /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 2\r\n\r\n\xff\xfe",
    "socket without a version": "GET /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "socket with a bad key": "GET /v1/responses HTTP/1.1\r\nHost: a\r\n{key}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    + _SECRET
    + "\r\n\r\n",
}


def _judge(stage: Stage, name: str, answer: Answer | None) -> None:
    """Refused in the API's shape or closed; nothing repeated, and nobody named who is inside."""
    if answer is None:
        return
    told = (answer.head + answer.body.decode("latin-1")).lower()
    stage.check(_SECRET not in told, f"{name}: the answer repeats what was sent: {told[:300]!r}")
    for library in _LIBRARIES:
        stage.check(library not in told, f"{name}: the answer names {library}: {told[:300]!r}")
    if answer.status < 400:
        stage.check(False, f"{name}: answered {answer.status}")
    else:
        stage.check(answer.error, f"{name}: {answer.status} is not of the API's shape: {told[:300]!r}")


@attack(quick=True)
async def http(stage: Stage) -> None:
    """Requests that break HTTP in one place each, with a key in them, are refused in the API's shape, without
    an echo and without names of libraries."""
    for name, text in _REQUESTS.items():
        _judge(stage, name, await stage.exchange(text.encode("latin-1"), within_s=5))


@attack(quick=True)
async def http_with_key(stage: Stage) -> None:
    """The same behind a key that is good: chunks, bodies and handshakes that are wrong."""
    for name, text in _WITH_KEY.items():
        data = text.replace("{key}", f"Authorization: Bearer {stage.key}\r\n").encode("latin-1")
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
