"""Trace contexts: a client's ``traceparent``, which turns are sampled, and the spans of earlier responses."""

import re

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
