"""Bodies of requests that do not arrive, or are too large."""

from slipring.core.limits import Limits
from tests.harness import serve
from tests.server.connections.limited import KEY_OF_A, KEY_OF_B, KEYS, read_error, request
from tests.server.raw import (
    open_tcp,
    until,
)


async def test_a_body_that_does_not_arrive_is_refused() -> None:
    async with serve(limits=Limits(body_timeout_s=0.05)) as server, open_tcp(server) as raw:
        await raw.send(request("POST", "/v1/responses", body=b'{"input":', length=100))
        assert await read_error(raw) == (408, "request_timeout")
        assert not server.service.requests.used_bytes


async def test_bodies_being_received_are_limited_per_tenant_and_in_total() -> None:
    limits = Limits(tenant_request_bytes=300_000, request_bytes=500_000)
    half = b'"' + b"x" * 200_000
    async with serve(limits=limits, api_key=KEYS) as server:
        requests = server.service.requests
        async with open_tcp(server) as first, open_tcp(server) as second, open_tcp(server) as third:
            await first.send(request("POST", "/v1/responses", KEY_OF_A, half, length=900_000))
            await until(lambda: requests.used_by("a") == len(half))
            await second.send(request("POST", "/v1/responses", KEY_OF_A, half, length=900_000))
            assert await read_error(second) == (429, "rate_limit_exceeded")
            await third.send(request("POST", "/v1/responses", KEY_OF_B, half, length=900_000))
            await until(lambda: requests.used_by("b") == len(half))
            async with open_tcp(server) as fourth:
                await fourth.send(request("POST", "/v1/responses", KEY_OF_B, b" " * 99_999, length=100_000))
                assert await read_error(fourth) == (503, "service_unavailable")
        await until(lambda: not requests.used_bytes)
        assert (await server.post(key="key-of-a", input="hello"))[0] == 200


async def test_a_body_beyond_the_limit_is_refused_before_it_arrives() -> None:
    async with serve(limits=Limits(max_frame_bytes=1000)) as server, open_tcp(server) as raw:
        await raw.send(request("POST", "/v1/responses", length=1001))
        assert await read_error(raw) == (413, "request_too_large")


async def test_a_body_without_a_length_is_refused_beyond_the_limit() -> None:
    async with serve(limits=Limits(max_frame_bytes=1000)) as server, open_tcp(server) as raw:
        chunk = b"3e9\r\n" + b"x" * 1001 + b"\r\n"
        await raw.send(request("POST", "/v1/responses", "Transfer-Encoding: chunked\r\n") + chunk)
        assert await read_error(raw) == (413, "request_too_large")
