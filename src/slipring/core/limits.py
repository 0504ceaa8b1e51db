"""All limits of a server, its connections and its tenants.

Each field has its unit in its name, a default and a description. Command-line flags, environment variables,
TOML keys and the configuration page are generated from these fields. Zero means "no limit" only where the
description says so.
"""

from dataclasses import dataclass, field
from typing import Any

_KIB = 1024
_MIB = 1024 * _KIB


def _bound(default: float, description: str) -> Any:
    return field(default=default, metadata={"help": description})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. Immutable, so that all sessions share one object."""

    max_frame_bytes: int = _bound(
        16 * _MIB, "largest WebSocket message or HTTP body; a larger message closes with 1009"
    )
    max_in_flight: int = _bound(16, "responses made at once on one connection; further ones wait")
    max_lanes: int = _bound(32, "distinct stream_id values over the life of one connection")
    max_queued: int = _bound(64, "creates that may wait on one connection; a further one is a 429")
    max_queued_bytes: int = _bound(32 * _MIB, "bytes of waiting creates on one connection")
    max_steers: int = _bound(32, "steers that may wait for one response; a further one fails")
    steer_after_tokens: int = _bound(
        64, "pieces of text after which a response that is steered is ended, sentence or not"
    )
    rollout_wait_s: float = _bound(600.0, "how long a rollout waits for what its client owes it")
    max_tokenizing: int = _bound(2, "long contexts tokenized at once by one process, tenants in turn")
    max_unsplit_chars: int = _bound(
        1024 * _KIB, "longest run of characters that is tokenized in one piece; a longer one is a 400"
    )
    counted_contexts: int = _bound(
        2, "contexts' worth of tokens that `input_tokens` counts; a longer input is a 400"
    )
    max_grammars: int = _bound(64, "grammars of custom tools in one request")
    max_grammar_bytes: int = _bound(
        64 * _KIB, "largest grammar of a custom tool; all of a request may have twice as much"
    )
    max_schema_bytes: int = _bound(
        256 * _KIB, "largest JSON schema: of a tool's parameters or output, or of a text format"
    )
    max_grammar_states: int = _bound(
        10_000, "states of the parser that a grammar may need; larger ones are refused"
    )
    max_compiled_bytes: int = _bound(
        1 * _MIB, "what is compiled at once, and what may come of it, for one request"
    )
    compile_timeout_s: float = _bound(
        2.0, "processor time that one grammar or schema may take to be compiled; by the clock, ten times that"
    )
    compile_memory_bytes: int = _bound(
        256 * _MIB, "memory of a process that compiles what clients send; below 64 MiB nothing can be"
    )
    compile_processes: int = _bound(1, "such processes, at most, beside each process that serves")
    max_compiles_waiting: int = _bound(
        16, "grammars and schemas of one tenant that may wait to be compiled; a further one is a 429"
    )
    compile_cache_bytes: int = _bound(
        64 * _MIB, "what was compiled, or refused, and is kept; a tenant may fill an eighth"
    )
    max_connections: int = _bound(20_000, "connections of all kinds that one process has open at once")
    tenant_share: float = _bound(0.8, "part of these that one tenant may hold, where API keys are needed")
    anonymous_share: float = _bound(0.25, "part of these for clients that have not yet shown an API key")
    header_timeout_s: float = _bound(10.0, "time for the head of a request, from the connection on")
    body_timeout_s: float = _bound(30.0, "how long a body or a message may be coming without progress")
    keepalive_timeout_s: float = _bound(75.0, "how long an HTTP connection is kept open for another request")
    request_bytes: int = _bound(
        1024 * _MIB, "bytes of requests that come, wait or run in one process; a further one is a 503"
    )
    tenant_request_bytes: int = _bound(256 * _MIB, "the same, of one tenant; a further one is a 429")
    connection_cache_bytes: int = _bound(
        64 * _MIB, "state of earlier responses kept in memory for one connection"
    )
    tenant_cache_bytes: int = _bound(1024 * _MIB, "the same, over all connections of one tenant")
    process_cache_bytes: int = _bound(2048 * _MIB, "the same, over all connections of the process")
    store_bytes: int = _bound(1024 * _MIB, "stored responses that the memory store holds")
    recent_bytes: int = _bound(256 * _MIB, "state of stored responses kept in memory, whatever the store")
    parked_s: float = _bound(
        120.0, "how long a cut connection's responses that are not stored can be continued; 0: not at all"
    )
    parked_bytes: int = _bound(512 * _MIB, "such responses kept by one process")
    max_age_s: float = _bound(3600.0, "age at which a connection is told to move and is closed")
    age_grace_s: float = _bound(60.0, "time that running responses get at the age limit")
    idle_timeout_s: float = _bound(0.0, "silence after which an idle connection is closed; 0: never")
    send_timeout_s: float = _bound(30.0, "how long a client may read nothing of what waits for it")
    unread_bytes: int = _bound(512 * _MIB, "bytes that wait to be read by clients, in one process")
    tenant_unread_bytes: int = _bound(128 * _MIB, "the same, of one tenant")
    send_buffer_bytes: int = _bound(256 * _KIB, "unsent events at which the engine is no longer pulled")
    ping_interval_s: float = _bound(20.0, "time between WebSocket pings; 0: none")
    pong_timeout_s: float = _bound(60.0, "silence after which a client that is pinged counts as gone")
    run_lease_s: float = _bound(
        15.0, "silence of a node after which its background responses count as failed"
    )
    max_runs: int = _bound(256, "background responses made at once by one process")
    tenant_retrievals: int = _bound(
        2, "answers from the store that are made at once for one tenant; further ones wait"
    )
    run_tail_bytes: int = _bound(
        256 * _KIB, "latest events of a background response kept in memory for those who follow it"
    )
    tenant_runs: int = _bound(64, "background responses made at once for one tenant; a further one is a 429")
    drain_timeout_s: float = _bound(30.0, "time that running responses get when the server stops")
