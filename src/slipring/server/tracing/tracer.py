"""The tracer: decides which of the ended turns are traced, under which parent and with which links, and where
their spans are sent.

A turn is sampled by the flag of the client's trace context, its ``traceparent``, else by the share that the
operator chose.
"""

import logging
import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_HEADERS,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.util.types import AttributeValue

from slipring import __version__
from slipring.config.settings import Config
from slipring.protocol.endpoints.reply_bodies import TraceCounts
from slipring.server.clock import clock, shared_now, unix_time
from slipring.server.observation.ended_turns import EndedTurn, TurnContent
from slipring.server.tracing.span_export import SpanExport
from slipring.server.tracing.turn_spans import TracedTurn, excerpt, new_context

log = logging.getLogger("slipring")

_MOST_RECENT_SPANS = 10_000
_DEFAULT_ENDPOINT = "http://localhost:4318"
_TRACES_PATH = "/v1/traces"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACEPARENT_LENGTH = 55
_SAMPLED = 1


class Tracer:
    """Traces the turns of one process."""

    def __init__(self, config: Config, instance_id: str) -> None:
        """``instance_id``: identifies this process among all that report to the collector."""
        url = traces_url(config.trace_endpoint, os.environ)
        self._where = without_secrets(url)
        # The exporter reads headers, certificates, compression and timeout from OTEL_EXPORTER_OTLP_… itself.
        self._export = SpanExport(
            OTLPSpanExporter(endpoint=url), _resource(instance_id), self._where, header_values(os.environ)
        )
        self._sampling = Sampling(config.trace_sample, follows_clients=config.trace_client_sampling)
        self._recent = RecentSpans(_MOST_RECENT_SPANS)
        self._config = config

    @property
    def counts(self) -> TraceCounts:
        return self._export.counts

    def start(self) -> None:
        self._export.start()
        config = self._config
        log.info(
            "traces go to %s: %g %% of the turns%s%s",
            self._where,
            config.trace_sample * 100,
            "; for requests with a traceparent, those that it marks" if config.trace_client_sampling else "",
            "; WITH CONTENT" if config.trace_content else "",
        )

    async def close(self) -> None:
        """Deliver what is left, within a fixed time."""
        await self._export.close()

    def observe(self, turn: EndedTurn, content: TurnContent | None = None) -> None:
        """Trace a turn, with its content if that is given, if the turn is sampled."""
        report, tenant = turn.report, turn.caller.tenant
        parent = read_traceparent(turn.traceparent)
        span = new_context(parent.trace_id if parent is not None else None)
        if not self._sampling.includes(span.trace_id, parent):
            return
        previous = report.previous_response_id
        traced = TracedTurn(
            turn=turn,
            span=span,
            parent=parent,
            previous=self._recent.find(tenant, previous) if previous else None,
            # The clock of this process never jumps. That of the machine may have been set since.
            ended_ns=int((turn.ended_at + shared_now() - unix_time(clock())) * 1e9),
            said=excerpt(content) if content is not None else None,
        )
        if self._export.offer(traced) and report.response_id:
            self._recent.add(tenant, report.response_id, span)


class Sampling:
    """Decides which turns have spans: a share of all traces, and those that clients have sampled."""

    def __init__(self, share: float, *, follows_clients: bool) -> None:
        """``follows_clients``: the flag in a client's traceparent decides, and the share only without one."""
        self._bound = TraceIdRatioBased.get_bound_for_rate(share)
        self._follows_clients = follows_clients

    def includes(self, trace_id: int, parent: SpanContext | None) -> bool:
        if parent is not None and self._follows_clients:
            return parent.trace_flags.sampled
        # As OpenTelemetry's own sampler decides, so that services with one share choose the same traces.
        return trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound


def read_traceparent(text: str | None) -> SpanContext | None:
    """The context in a W3C ``traceparent``, or None if it is not a valid one.

    Version 00 is exactly this long. Later versions may add fields, which are ignored, as W3C asks.
    """
    if text is None:
        return None
    found = _TRACEPARENT.match(text)
    if found is None or found[1] == "ff":
        return None
    if len(text) > _TRACEPARENT_LENGTH and (found[1] == "00" or text[_TRACEPARENT_LENGTH] != "-"):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    return SpanContext(
        trace_id, span_id, is_remote=True, trace_flags=TraceFlags(int(found[4], 16) & _SAMPLED)
    )


class RecentSpans:
    """The span of each recent response of this process, for links from the responses that continue it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._spans: dict[tuple[str, str], SpanContext] = {}

    def __len__(self) -> int:
        return len(self._spans)

    def find(self, tenant: str, response_id: str) -> SpanContext | None:
        """The span of a response, or None if it was not sampled, ended elsewhere or long ago."""
        return self._spans.get((tenant, response_id))

    def add(self, tenant: str, response_id: str, span: SpanContext) -> None:
        """Remember a span, and forget the oldest one above the limit."""
        self._spans[tenant, response_id] = span
        if len(self._spans) > self._most:
            del self._spans[next(iter(self._spans))]


def header_values(environ: Mapping[str, str]) -> set[str]:
    """The values of the headers that the exporter sends, whole and without a scheme such as ``Bearer``."""
    values: set[str] = set()
    for name in (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS):
        for header in environ.get(name, "").split(","):
            value = unquote(header.partition("=")[2]).strip()
            values |= {value, value.rpartition(" ")[2]}
    return values - {""}


def traces_url(endpoint: str, environ: Mapping[str, str]) -> str:
    """The URL that spans are sent to: the configured one, else that of OpenTelemetry's variables.

    A configured URL without a path gets the path of the protocol.
    """
    if endpoint:
        parts = urlsplit(endpoint)
        return urlunsplit(parts._replace(path=_TRACES_PATH)) if parts.path in ("", "/") else endpoint
    if of_traces := environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT):
        return of_traces
    return (environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or _DEFAULT_ENDPOINT).rstrip("/") + _TRACES_PATH


def without_secrets(url: str) -> str:
    """A URL without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _resource(instance_id: str) -> Resource:
    """What the spans of this process have in common; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to it
    and override it."""
    own: dict[str, AttributeValue] = {
        "service.name": "slipring",
        "service.version": __version__,
        "service.instance.id": instance_id,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())
