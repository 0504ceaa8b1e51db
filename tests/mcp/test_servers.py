"""Whom the client may call, and with which headers: the attack suite of the connection."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from slipring.mcp.credentials import Credential, check_headers
from slipring.mcp.failures import McpFailure, Outcome, RequestRefused
from slipring.mcp.pool import Pool
from slipring.mcp.servers import HttpServer
from slipring.mcp.transports.addresses import AddressNotPublic, Reach, is_public_address, public_socket
from slipring.mcp.url_policy import UrlPolicy, admit, parse_url
from tests.mcp.fakes import Exchange, FakeServer, Reply, at, error, serving

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001:830::200e"]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"]
NOT_PUBLIC = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255",
    "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "192.0.0.192", "192.0.2.1",
    "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.88.99.1",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "64:ff9b:1::8.8.8.8", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::",
    "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "3fff::1", "5f00::1", "100::1",
    "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "2606:4700::1%1", "fec0::1",
    "ff02::1",
    "4000::1", "", "localhost", "127.1", "0x7f.1", "017700000001", "2130706433",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_all_other_addresses(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize(
    ("family", "where"),
    [
        (socket.AF_INET, ("127.0.0.1", 443)),
        (socket.AF_INET6, ("::1", 443, 0, 0)),
        (socket.AF_INET6, ("2606:4700:4700::1111", 443, 0, 7)),
        (socket.AF_UNIX, "/run/docker.sock"),
    ],
)
def test_no_socket_is_made_for_an_address_that_is_not_public(family: int, where: Any) -> None:
    with pytest.raises(AddressNotPublic):
        public_socket((family, socket.SOCK_STREAM, 6, "", where))


def test_a_socket_is_made_for_a_public_address() -> None:
    public_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443))).close()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/mcp",
        "https://example.com:22/mcp",
        "https://localhost/mcp",
        "https://localhost./mcp",
        "https://LOCALHOST/mcp",
        "https://intranet/mcp",
        "https://db.internal/",
        "https://printer.local/",
        "https://a.localhost/",
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[fe80::1%25eth0]/",
        "https://[fd00::1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://１２７.0.0.1/",
    ],
)
def test_urls_that_are_not_public_are_refused(url: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        admit("label", parse_url(url), UrlPolicy.PUBLIC)
    assert caught.value.outcome is Outcome.NOT_SENT


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/mcp",
        "//example.com/mcp",
        "ftp://example.com/",
        "file:///etc/passwd",
        "unix:///run/docker.sock",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://@example.com/",
        "https://example.com/#fragment",
        "https://example.com\\@127.0.0.1/",
        "https://exam ple.com/",
        "https://example.com/\r\nHost: x",
        "https://example.com/\x00",
        "https://[::1",
        "https://example.com:99999/",
        "https://example.com/" + "x" * 3000,
    ],
)
@pytest.mark.parametrize("policy", list(UrlPolicy))
def test_urls_that_are_none_are_refused_under_every_policy(url: str, policy: UrlPolicy) -> None:
    with pytest.raises(RequestRefused) as caught:
        admit("label", parse_url(url), policy)
    assert "secret" not in str(caught.value)


def test_policies() -> None:
    public, private = parse_url("https://example.com/mcp"), parse_url("http://10.0.0.7/")
    with pytest.raises(RequestRefused):
        admit("label", public, UrlPolicy.REGISTERED)
    assert admit("label", public, UrlPolicy.PUBLIC).reach is Reach.PUBLIC
    assert admit("label", private, UrlPolicy.ANY).reach is Reach.UNRESERVED


class Names(AbstractResolver):
    """A name server that answers differently each time."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        self.asked += 1
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=family, proto=6, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def resolving(names: Names) -> AsyncIterator[Pool]:
    """A pool whose names are resolved by ``names``, every time anew."""
    async with Pool() as pool:
        connector = pool._web.session(Reach.PUBLIC).connector
        assert connector is not None
        connector._resolver, connector._use_dns_cache = names, False  # type: ignore[attr-defined]
        yield pool


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.1.2.3"])
async def test_a_name_that_leads_inside_is_not_connected_to(modern: FakeServer, address: str) -> None:
    names = Names(address)
    async with resolving(names) as pool:
        server = admit("label", parse_url("https://attacker.example/mcp"), UrlPolicy.PUBLIC)
        with pytest.raises(RequestRefused) as caught:
            await pool.call(server, "add", {})
    assert names.asked == 1
    assert caught.value.outcome is Outcome.NOT_SENT
    assert "attacker" not in str(caught.value)


async def test_a_name_that_is_rebound_is_not_connected_to(modern: FakeServer) -> None:
    """The check is made on the address of the socket: what the name meant to whoever asked before does not
    count. The server inside would answer."""
    port = parse_url(modern.url).port
    names = Names("8.8.8.8", "127.0.0.1")
    async with resolving(names) as pool:
        await names.resolve("attacker.example")
        server = HttpServer("label", parse_url(f"http://attacker.example:{port}/mcp"), reach=Reach.PUBLIC)
        with pytest.raises(RequestRefused):
            await pool.tools(server)
    assert not modern.seen


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_an_address_in_the_url_is_checked_by_the_socket_too(modern: FakeServer, host: str) -> None:
    port = parse_url(modern.url).port
    async with Pool() as pool:
        with pytest.raises(RequestRefused):
            await pool.tools(HttpServer("label", parse_url(f"http://{host}:{port}/mcp"), reach=Reach.PUBLIC))
    assert not modern.seen


async def test_proxies_of_the_environment_are_not_used(
    pool: Pool, modern: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await pool.tools(at(modern))).tools


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Host",
            "host",
            "Connection",
            "Content-Length",
            "Content-Type",
            "Transfer-Encoding",
            "TE",
            "Upgrade",
        ),
        *("Cookie", "Proxy-Authorization", "Mcp-Session-Id", "mcp-param-x", "MCP-Protocol-Version", "Accept"),
        *(
            "Accept-Encoding",
            "Expect",
            "X-Forwarded-For",
            "Forwarded",
            "Origin",
            "Last-Event-ID",
            "Sec-Fetch-Site",
        ),
        *(
            "X-HTTP-Method-Override",
            "Trailer",
            "",
            "a b",
            "a:b",
            "é",
            "a\r\nb",
            "a\x00",
            ":authority",
            "x" * 200,
        ),
    ],
)
def test_headers_that_could_smuggle_are_refused(name: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        check_headers({name: "the-value"})
    assert "the-value" not in str(caught.value)


@pytest.mark.parametrize("value", ["", " a", "a ", "a\r\nHost: b", "a\nb", "a\0b", "é", "\t", "a\x7f"])
def test_header_values_that_could_smuggle_are_refused(value: str) -> None:
    with pytest.raises(RequestRefused):
        Credential(headers={"X-Key": value})
    with pytest.raises(RequestRefused):
        Credential(authorization=value or "\n")


def test_too_many_or_ambiguous_headers_are_refused() -> None:
    for headers in ({f"x-{n}": "v" for n in range(40)}, {"x": "v" * 40_000}, {"X-A": "1", "x-a": "2"}):
        with pytest.raises(RequestRefused):
            check_headers(headers)
    with pytest.raises(RequestRefused):
        Credential("token", {"authorization": "Bearer other"})


def test_tokens_are_sent_as_bearer_tokens() -> None:
    for given in ("tok-1", "Bearer tok-1", "bearer  tok-1"):
        assert Credential(given).headers == {"Authorization": "Bearer tok-1"}


SECRET = "sk-very-secret-token"
KEY = "key-of-the-operator"


def repeats(code: int) -> Callable[[Exchange], Any]:
    """A server that repeats what it was sent, in an error."""

    async def behaviour(exchange: Exchange) -> Reply:
        headers = exchange.request.headers
        said = f"bad token {headers['Authorization']} {headers['X-Key']}"
        return web.json_response(error(exchange.id, code, said), status=400 if code else 500)

    return behaviour


async def plain(exchange: Exchange) -> Reply:
    return web.Response(status=403, text=str(dict(exchange.request.headers)))


async def reset(exchange: Exchange) -> Reply:
    assert exchange.request.transport is not None
    exchange.request.transport.abort()
    return {}


async def garbage(exchange: Exchange) -> Reply:
    return web.Response(
        text=f"{{{exchange.request.headers['Authorization']}", content_type="application/json"
    )


async def hang(exchange: Exchange) -> Reply:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize(
    "behaviour", [repeats(-32602), repeats(0), plain, reset, garbage, hang], ids=range(6)
)
@pytest.mark.parametrize("method", ["tools/call", "tools/list", "handshake"])
async def test_no_error_and_no_log_has_a_secret(
    fake: FakeServer, behaviour: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if method == "handshake":
        fake.on["server/discover"] = fake.on["initialize"] = behaviour
    else:
        fake.on[method] = behaviour
    limits = {
        "call_timeout_s": 1.0 if behaviour is hang else 60,
        "list_timeout_s": 1.0 if behaviour is hang else 60,
        "handshake_timeout_s": 1.0 if behaviour is hang else 60,
    }
    base = at(fake, **limits)
    url = parse_url(f"{base.url}?api_key={SECRET}")
    server = HttpServer("fake", url, Reach.ALL, Credential(headers={"X-Key": KEY}), limits=base.limits)
    credential = Credential(SECRET)
    async with Pool() as pool:
        with pytest.raises(McpFailure) as caught:
            await (
                pool.tools(server, credential) if method != "tools/call" else _call(pool, server, credential)
            )
    assert fake.seen[-1].headers.get("X-Key", KEY) == KEY
    seen: list[BaseException | None] = [caught.value]
    while (last := seen[-1]) is not None:
        for text in (str(last), repr(last), last.__dict__.get("message", ""), repr(server), repr(credential)):
            assert SECRET not in text
            assert KEY not in text
        # Nothing below it either: a traceback shows the whole chain.
        seen.append(None if last.__suppress_context__ else last.__context__)
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


async def _call(pool: Pool, server: HttpServer, credential: Credential) -> Any:
    return await pool.call(server, "add", {"a": 1}, credential)


async def test_credentials_reach_the_server_and_the_callers_win(pool: Pool) -> None:
    async with serving(FakeServer(modern=True)) as fake:
        base = at(fake)
        operator = Credential("operator-token", {"X-Key": KEY})
        server = HttpServer("fake", base.url, Reach.ALL, operator)
        await pool.tools(server, Credential(SECRET))
        headers = fake.last("tools/list").headers
        assert (headers["Authorization"], headers["X-Key"]) == (f"Bearer {SECRET}", KEY)
        assert "Cookie" not in headers
