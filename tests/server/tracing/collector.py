"""An OTLP/HTTP receiver of traces that keeps every request: its bytes, its headers and its spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received(Struct):
    """A span with its attributes as Python values."""

    span: Span
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def name(self) -> str:
        return self.span.name


class Collector:
    """What has been received."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        """What requests are answered with."""
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[Received] = []

    @property
    def turns(self) -> list[Received]:
        """The spans of turns, in the order in which the turns ended."""
        return [each for each in self.spans if each.span.kind == Span.SPAN_KIND_SERVER]

    def children(self, turn: Received) -> list[Received]:
        return [each for each in self.spans if each.span.parent_span_id == turn.span.span_id]

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.status == 200:
            self.spans += decode(body)
        return web.Response(status=self.status)


def decode(body: bytes) -> list[Received]:
    """The spans of a request, in its order."""
    return [
        Received(span, values(span.attributes), values(of.resource.attributes))
        for of in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: value(each.value) for each in attributes}


def value(given: AnyValue) -> Any:
    kind = given.WhichOneof("value")
    if kind == "array_value":
        return [value(each) for each in given.array_value.values]
    return getattr(given, kind) if kind is not None else None


@asynccontextmanager
async def collect() -> AsyncIterator[Collector]:
    """A receiver on a free loopback port."""
    collector = Collector()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/traces", collector.receive)
    async with TestServer(app, host="127.0.0.1") as server:
        collector.url = f"http://127.0.0.1:{server.port}"
        yield collector
