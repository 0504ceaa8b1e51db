"""All limits of a server, its connections and its tenants.

Each field has its unit in its name, a default and a description. Command-line flags, environment variables,
TOML keys and the configuration page are generated from these fields. Zero means "no limit" only where the
description says so.
"""

from dataclasses import dataclass, field
from typing import Any

_KIB = 1024
_MIB = 1024 * _KIB


def _limit(default: float, description: str) -> Any:
    return field(default=default, metadata={"help": description})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. Immutable, so that all sessions share one object."""

    max_frame_bytes: int = _limit(
        16 * _MIB, "largest WebSocket message or HTTP body; a larger message closes the connection with 1009"
    )
    max_in_flight: int = _limit(16, "responses running at once on one connection; further ones wait")
    max_lanes: int = _limit(32, "distinct stream_id values during the lifetime of one connection")
    max_queued: int = _limit(64, "requests that may wait on one connection; further ones get a 429")
    max_queued_bytes: int = _limit(32 * _MIB, "total size of the requests that wait on one connection")
    max_steers: int = _limit(32, "steering messages that may wait for one response; further ones fail")
    steer_after_tokens: int = _limit(
        64, "a steered response ends at the end of a sentence, or after this many further pieces of text"
    )
    max_tool_output_bytes: int = _limit(
        1024 * _KIB,
        "output of running tools that is prefilled for one response; what a client streams past it has no"
        " effect",
    )
    max_tool_result_bytes: int = _limit(
        1024 * _KIB, "largest result of a tool that this server calls; a call with a larger one fails"
    )
    max_tool_result_chars: int = _limit(
        100_000, "text of such a result that the model reads; the rest is cut off"
    )
    tenant_tool_calls: int = _limit(
        64, "such calls, and lists of tools being fetched, of one tenant at once; further ones wait"
    )
    rollout_wait_s: float = _limit(600.0, "how long a rollout waits for input that its client has to send")
    max_tokenizing: int = _limit(
        2, "long contexts that one process tokenizes at once, taking tenants in turn"
    )
    max_unsplit_chars: int = _limit(
        1024 * _KIB, "longest text without a place where the tokenizer can split it; a longer one gets a 400"
    )
    counted_contexts: int = _limit(
        2,
        "longest input that `input_tokens` counts, as a multiple of the context; a longer one gets a 400",
    )
    max_pictures: int = _limit(100, "images in one context; a request that adds more gets a 400")
    max_picture_bytes: int = _limit(
        10 * _MIB, "largest image, by its file and not by its base64; a larger one gets a 400"
    )
    max_picture_pixels: int = _limit(
        50_000_000, "width × height of the largest image, by its header; a larger one gets a 400"
    )
    max_document_bytes: int = _limit(
        10 * _MIB, "largest PDF file, by its file and not by its base64; a larger one gets a 400"
    )
    max_document_pages: int = _limit(100, "pages of the longest PDF file; a longer one gets a 400")
    max_pages_bytes: int = _limit(
        64 * _MIB,
        "texts and pictures of the pages of all PDF files in one request, its history included; more get"
        " a 400. Those of one message or output may be as large as a request",
    )
    document_timeout_s: float = _limit(
        20.0, "CPU time to read one PDF file; the wall-clock limit is ten times as long"
    )
    document_memory_bytes: int = _limit(
        512 * _MIB, "memory of the process that reads PDF files; it needs at least 128 MiB"
    )
    max_grammars: int = _limit(64, "grammars of custom tools in one request")
    max_grammar_bytes: int = _limit(
        64 * _KIB,
        "largest grammar of a custom tool; all grammars of a request together may be twice as large",
    )
    max_schema_bytes: int = _limit(
        256 * _KIB, "largest JSON schema of a tool's parameters, a tool's output or a text format"
    )
    max_grammar_states: int = _limit(
        10_000, "parser states that a grammar may need; a larger grammar gets a 400"
    )
    max_compiled_bytes: int = _limit(
        1 * _MIB, "total size of the schemas and grammars compiled for one request, and of the result"
    )
    compile_timeout_s: float = _limit(
        2.0, "CPU time to compile one grammar or schema; the wall-clock limit is ten times as long"
    )
    compile_memory_bytes: int = _limit(
        256 * _MIB, "memory of a process that compiles grammars and schemas; it needs at least 64 MiB"
    )
    compile_processes: int = _limit(1, "compiling processes for each serving process")
    max_compiles_waiting: int = _limit(
        16, "grammars and schemas of one tenant that may wait to be compiled; further ones get a 429"
    )
    verdict_cache_bytes: int = _limit(
        32 * _MIB,
        "remembered verdicts of safety checks about texts, of which one tenant may use an eighth; and as much"
        " again for those about items",
    )
    compile_cache_bytes: int = _limit(
        64 * _MIB, "cache of compiled and refused grammars and schemas; one tenant may use an eighth of it"
    )
    max_connections: int = _limit(20_000, "open connections of all kinds in one process")
    tenant_share: float = _limit(
        0.8, "share of max_connections that one tenant may hold, if API keys are required"
    )
    anonymous_share: float = _limit(
        0.25, "share of max_connections for clients that have not sent an API key yet"
    )
    header_timeout_s: float = _limit(10.0, "time from the connection to the end of the request headers")
    body_timeout_s: float = _limit(
        30.0, "how long a client may pause while it sends a request body or a message"
    )
    keepalive_timeout_s: float = _limit(75.0, "how long an idle HTTP connection stays open")
    request_bytes: int = _limit(
        1024 * _MIB, "total size of the requests that one process receives, queues and runs; more get a 503"
    )
    tenant_request_bytes: int = _limit(256 * _MIB, "request_bytes of one tenant; more get a 429")
    connection_cache_bytes: int = _limit(
        64 * _MIB, "memory for the state of earlier responses on one connection"
    )
    connection_compressed_bytes: int = _limit(
        192 * _MIB,
        "items of one connection that are compressed, by their size before that: the oldest of a chain that"
        " is not stored and exceeds connection_cache_bytes; a larger chain is forgotten",
    )
    tenant_cache_bytes: int = _limit(1024 * _MIB, "the same for all connections of one tenant")
    process_cache_bytes: int = _limit(2048 * _MIB, "the same for all connections of one process")
    store_bytes: int = _limit(1024 * _MIB, "size of the memory store")
    tenant_store_bytes: int = _limit(512 * _MIB, "the same for one tenant")
    recent_bytes: int = _limit(
        256 * _MIB, "memory for the state of recently stored responses, with every kind of store"
    )
    parked_s: float = _limit(
        120.0,
        "how long responses that are not stored can be continued after a disconnect; 0: not at all",
    )
    parked_bytes: int = _limit(512 * _MIB, "memory for such responses in one process")
    recognised_s: float = _limit(
        86_400.0,
        "how long a context is kept after its last use to recognise a history that a client sends again;"
        " 0: not at all",
    )
    recognised_bytes: int = _limit(256 * _MIB, "memory for such contexts in one process")
    max_age_s: float = _limit(3600.0, "age at which a client is asked to reconnect and its connection closes")
    age_grace_s: float = _limit(60.0, "time for running responses to finish after max_age_s")
    idle_timeout_s: float = _limit(0.0, "time without messages after which a connection closes; 0: never")
    send_timeout_s: float = _limit(30.0, "how long a client may read nothing while events wait for it")
    unread_bytes: int = _limit(512 * _MIB, "data that waits to be read by clients, in one process")
    tenant_unread_bytes: int = _limit(128 * _MIB, "the same for one tenant")
    send_buffer_bytes: int = _limit(256 * _KIB, "unsent events of a connection at which its engine pauses")
    ping_interval_s: float = _limit(45.0, "time without data after which a client is pinged; 0: no pings")
    pong_timeout_s: float = _limit(60.0, "time without data after which a pinged client is disconnected")
    run_lease_s: float = _limit(
        15.0, "time without a sign of life of a node after which its background responses fail"
    )
    max_runs: int = _limit(256, "background responses running at once in one process")
    tenant_retrievals: int = _limit(
        2, "stored responses that are read at once for one tenant; further requests wait"
    )
    run_tail_bytes: int = _limit(
        256 * _KIB, "latest events of a background response kept in memory for clients that follow it"
    )
    tenant_runs: int = _limit(
        64, "background responses of one tenant running at once; further ones get a 429"
    )
    record_file_bytes: int = _limit(
        64 * _MIB, "size of one recording; turns that do not fit any more are not recorded"
    )
    record_files: int = _limit(
        100, "recordings in the directory; conversations that begin later are not recorded"
    )
    record_queue_bytes: int = _limit(
        64 * _MIB, "turns that wait to be written to a recording, in one process; further ones are dropped"
    )
    drain_timeout_s: float = _limit(30.0, "time for running responses to finish when the server stops")
