"""Any messages of a live stream, for Hypothesis: what a server could send, and values that none would."""

from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET

from slipring.observation.live_messages import (
    Connection,
    Engine,
    Greeting,
    Memory,
    Message,
    Parked,
    ProcessGone,
    SavedContext,
    Slot,
    TenantMemory,
    Totals,
    Turn,
    Update,
)
from slipring.protocol.turn_report import Departure, Stage, TokenCounts, TurnReport

_times = st.floats(allow_nan=False, allow_infinity=False) | st.floats(1.8e9, 1.8e9 + 60)
_sizes = st.integers(-1, 2**40) | st.integers()
_numbers = st.integers(0, 3)
_texts = st.sampled_from(
    ["team-a", "", "\x1b[2J\x07", "a\nb\tc", "\u202ezz", "長い名前", "e\u0301", "x" * 300]
)
_texts |= st.text(max_size=5)


def _few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=2)


def _made(struct: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(struct, **fields)


_memory = _made(Memory, used_bytes=_sizes, limit_bytes=_sizes)
_counts = st.dictionaries(_texts | st.sampled_from(["completed", "input", "cached"]), _sizes, max_size=3)
_stages = _made(
    Stage,
    name=st.sampled_from(["decode", "render", "engine_queue", "prefill", "generate", "client"]),
    start_ms=_times,
    duration_ms=_times,
)
_reports = _made(
    TurnReport,
    status=_texts | st.sampled_from(["completed", "failed", "running", "paused", "waiting"]),
    request_bytes=_sizes,
    stages=_few(_stages),
    total_ms=_times,
    model=st.just(UNSET) | _texts,
    tokens=st.just(UNSET)
    | _made(TokenCounts, rendered=_sizes, input=_sizes, cached=_sizes, output=_sizes, reasoning=_sizes),
    fallback=st.just(UNSET) | _texts,
    departed=st.just(UNSET) | _made(Departure, field=_texts, item=st.just(UNSET) | _sizes),
    error_code=st.just(UNSET) | _texts,
    history_bytes=st.just(UNSET) | _sizes,
    marks=st.just(UNSET) | st.just(("fork", "steered")),
)
_turns = _made(
    Turn,
    started_at=_times,
    report=_reports,
    transport=_texts,
    tenant=_texts,
    connection=_numbers,
    lane=st.none() | _texts,
)
_connections = _made(
    Connection,
    number=_numbers,
    tenant=_texts,
    opened_at=_times,
    cache=_memory,
    responses=_sizes,
    lanes=_sizes,
    turns_ended=_sizes,
    unsent_bytes=_sizes,
    running=_few(_turns),
    recent=st.just(UNSET) | _few(_turns),
)
_engines = _made(
    Engine,
    name=_texts,
    models=_few(_texts),
    trouble=st.none() | _texts,
    running=_sizes,
    waiting=_sizes,
    breaker=st.sampled_from(["none", "open", "closed"]),
    slots=_few(
        _made(
            Slot,
            number=_numbers,
            state=_texts,
            tokens=_sizes,
            tenant=st.none() | _texts,
            response_id=st.none() | _texts,
        )
    ),
    saved=_few(
        _made(SavedContext, tenant=_texts, tokens=_sizes, size_bytes=_sizes, response_id=st.none() | _texts)
    ),
    saved_memory=st.none() | _memory,
)
_totals = _made(
    Totals, turns=_counts, tokens=_counts, request_bytes=_sizes, history_bytes=_sizes, fallbacks=_counts
)
_updates = _made(
    Update,
    process=_numbers,
    pid=_numbers,
    now=_times,
    is_complete=st.booleans(),
    memory=st.dictionaries(_texts | st.sampled_from(["states", "parked"]), _memory, max_size=3),
    tenants=_few(_made(TenantMemory, tenant=_texts, used_bytes=_sizes, limit_bytes=_sizes)),
    resident_bytes=_sizes,
    cpu_s=_times,
    loop_lag_ms=_times,
    sockets=_sizes,
    in_flight=_sizes,
    waiting=_sizes,
    is_draining=st.booleans(),
    needs_key=st.booleans(),
    engines=_few(_engines),
    parked=_few(_made(Parked, tenant=_texts, responses=_sizes, size_bytes=_sizes, seconds_left=_times)),
    parked_sessions=_sizes,
    totals=_totals,
    connections=_few(_connections),
    closed=_few(_numbers),
    http=_few(_turns),
    turns=_few(_turns),
    turns_missed=_sizes,
)
_greetings = _made(
    Greeting,
    version=_texts,
    started_at=_times,
    now=_times,
    interval_s=_times,
    api_url=_texts,
    workers=st.integers(-1, 3),
    departed=_totals,
)

any_messages: st.SearchStrategy[list[Message]] = st.lists(
    st.one_of(_updates, _updates, _greetings, _made(ProcessGone, process=_numbers, departed=_totals)),
    max_size=3,
)
"""Short sequences of messages, in any order."""
