"""Which turns are traced: by the flag of the client's trace context, else by the share that the operator
chose.
"""

from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanContext


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
