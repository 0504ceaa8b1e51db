"""Trace contexts: a client's ``traceparent``, which turns are sampled, and the spans of earlier responses."""

import re

from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanContext, TraceFlags

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH = 55
_SAMPLED = 1


def read_traceparent(text: str | None) -> SpanContext | None:
    """The context in a W3C ``traceparent``, or None if it is not a valid one.

    Version 00 is exactly this long. Later versions may add fields, which are ignored, as W3C asks.
    """
    if text is None:
        return None
    found = _FORM.match(text)
    if found is None or found[1] == "ff":
        return None
    if len(text) > _LENGTH and (found[1] == "00" or text[_LENGTH] != "-"):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    return SpanContext(
        trace_id, span_id, is_remote=True, trace_flags=TraceFlags(int(found[4], 16) & _SAMPLED)
    )


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
