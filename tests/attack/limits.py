"""The limits that servers under attack run with: the only place where the suite names them.

Deadlines are short, so that the suite is; sizes are small, so that an attack reaches them on any machine.
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
"""What differs from the defaults."""

PATIENCE_S = 4.0
"""How much later than a deadline its effect may be seen: servers look at deadlines about once a second, and
the machine may be busy."""
EVENT_MS = 100.0
LARGE_EVENT_MS = 300.0
"""The same while requests of 5 to 16 MiB are read whose JSON is all escapes, keys or parts: a library decodes
each in one call, and no other thread of the process runs meanwhile."""
STORM_EVENT_MS = 750.0
"""The same while thousands of sockets are cut in one moment."""
"""The victim's time per event, at the 99th percentile, while an attack goes on."""
SLACK_MIB = 96
"""How much more memory than before a server may hold when an attack is over. Allocators keep some of what
they are given back; what is attacked with here is several times as much."""
SLACK_DESCRIPTORS = 8
"""The victim's own connections come and go while descriptors are counted."""
