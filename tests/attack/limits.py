"""The limits of the servers under attack, and of the checks.

Deadlines are short to keep the suite short; sizes are small, so that an attack reaches them on any machine.
"""

from collections.abc import Mapping

MIB = 1024 * 1024

LIMITS: Mapping[str, float] = {
    "header_timeout_s": 2,
    "body_timeout_s": 2,
    "keepalive_timeout_s": 2,
    "send_timeout_s": 3,
    "ping_interval_s": 2,
    "pong_timeout_s": 8,
    "drain_timeout_s": 5,
    "max_runs": 32,
    "tenant_runs": 8,
    "parked_bytes": 32 * MIB,
    "parked_s": 8,
    "recent_bytes": 16 * MIB,
    "unread_bytes": 128 * MIB,
    "tenant_unread_bytes": 64 * MIB,
    "request_bytes": 256 * MIB,
    "tenant_request_bytes": 64 * MIB,
    "max_grammar_bytes": 64 * 1024,
    "max_grammars": 64,
    "max_schema_bytes": 256 * 1024,
    "compile_timeout_s": 1,
}
"""Settings that differ from the defaults."""

PATIENCE_S = 4.0
"""How late a deadline may take effect: servers check deadlines about once a second, and the machine may be
busy."""
EVENT_MS = 100.0
"""Limit of the victim's time per event, at the 99th percentile, during an attack. How late the victim's own
timers were at the same percentile is subtracted: that is the time for which processes waited for a CPU."""
LARGE_EVENT_MS = 300.0
"""The same while requests of 5 to 16 MiB are read whose JSON is all escapes, keys or parts: a library decodes
each in one call, and no other thread of the process runs meanwhile."""
STORM_EVENT_MS = 750.0
"""The same while thousands of sockets are dropped at once."""
SLACK_MIB = 96
"""How much more memory a server may hold after an attack than before. Caches that the attack has filled (of
responses, of SQLite) are kept, and allocators keep some freed memory; the attacks use several times as much.
Up to twice as much is tolerated if a repetition of the attack adds nothing to it."""
REPEATED_SLACK_MIB = 24
"""How much more it may hold after the repetition: caches are full by then."""
SLACK_DESCRIPTORS = 8
"""Tolerance for descriptors: the victim opens and closes connections while they are counted."""
