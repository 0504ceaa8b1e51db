"""Trace contexts: reading, sampling, and the map of recent spans."""

import pytest
from opentelemetry.trace import SpanContext, TraceFlags

from slipring.server.tracing.tracer import RecentSpans, Sampling, read_traceparent
from slipring.server.tracing.turn_spans import new_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-of-a-later-version", True),
    ],
)
def test_a_valid_traceparent_is_read(text: str, is_sampled: bool) -> None:
    context = read_traceparent(text)
    assert context is not None
    assert (context.trace_id, context.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert context.is_remote
    assert context.trace_flags.sampled is is_sampled


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-011",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{'٣' * 32}-{SPAN}-01",
        "0" * 1_000_000,
    ],
)
def test_anything_else_is_none(text: str | None) -> None:
    assert read_traceparent(text) is None


def test_the_share_of_traces_is_that_which_was_asked_for() -> None:
    sampling = Sampling(0.25, follows_clients=True)
    step = 2**64 // 1024
    assert sum(sampling.includes(place * step, None) for place in range(1024)) == 256
    assert all(Sampling(1.0, follows_clients=True).includes(2**128 - 1 - place, None) for place in range(9))
    assert not Sampling(0.0, follows_clients=True).includes(2**64, None)


def test_one_trace_is_sampled_whole_or_not_at_all_without_the_clients_flag() -> None:
    sampling = Sampling(0.5, follows_clients=False)
    for flags in (0, 1):
        parent = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(flags))
        assert sampling.includes(1, parent)
        assert not sampling.includes(2**64 - 1, parent)


def test_recent_spans_are_bounded_and_known_to_their_tenant_only() -> None:
    recent = RecentSpans(most=2)
    spans = [new_context() for _ in range(3)]
    for number, span in enumerate(spans):
        recent.add("a", f"resp_{number}", span)
    assert len(recent) == 2
    assert recent.find("a", "resp_0") is None
    assert recent.find("a", "resp_2") is spans[2]
    assert recent.find("b", "resp_2") is None
