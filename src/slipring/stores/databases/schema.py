"""The tables of the store, as an append-only list of migrations.

A database records how many migrations it has run. If these are more than are listed here, a newer slipring
has migrated it, and the database also records the oldest version that may use it. After a migration that only
adds, nodes of the version before continue and can start again, so that nodes can be upgraded one after the
other. A migration that older nodes cannot work with writes its own number to ``slipring_oldest_schema``;
older nodes then refuse to start. Text that clients choose freely is stored as bytes, because a text column of
PostgreSQL cannot hold NUL.
"""

from slipring.base.errors import StartupError

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS slipring_schema (version BIGINT PRIMARY KEY)"
READ_VERSION = "SELECT COALESCE(MAX(version), 0) FROM slipring_schema"
TOUCH = "UPDATE slipring_schema SET version = version WHERE version = 1"
"""Writes, and changes nothing."""
READ_OLDEST = "SELECT MAX(version) FROM slipring_oldest_schema"
"""The version from which on a slipring may use the tables. Only in databases of version 4 and later."""
WRITE_VERSION = "INSERT INTO slipring_schema (version) VALUES ($1)"

_FIRST = (
    """
    CREATE TABLE slipring_heads (
        tenant TEXT NOT NULL,
        digest BYTEA NOT NULL,
        instructions BYTEA,
        tools BYTEA NOT NULL,
        PRIMARY KEY (digest, tenant)
    )
    """,
    # A row holds only what its response adds to the parent. A hidden row exists only for its descendants. The
    # indexes begin with the id: if they began with the tenant, a planner without statistics would read all of
    # the tenant's responses for each step along a chain instead of looking one up.
    """
    CREATE TABLE slipring_responses (
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        parent_id TEXT,
        hidden BIGINT NOT NULL,
        status TEXT NOT NULL,
        model TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL,
        head BYTEA NOT NULL,
        response BYTEA NOT NULL,
        input BYTEA NOT NULL,
        output BYTEA NOT NULL,
        carry BYTEA,
        position BYTEA,
        PRIMARY KEY (id, tenant),
        FOREIGN KEY (tenant, parent_id) REFERENCES slipring_responses (tenant, id),
        FOREIGN KEY (tenant, head) REFERENCES slipring_heads (tenant, digest)
    )
    """,
    "CREATE INDEX slipring_responses_children ON slipring_responses (parent_id, tenant)",
    "CREATE INDEX slipring_responses_heads ON slipring_responses (head, tenant)",
    "CREATE INDEX slipring_responses_expiry ON slipring_responses (expires_at)",
    """
    CREATE TABLE slipring_conversations (
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        metadata BYTEA NOT NULL,
        version BIGINT NOT NULL,
        tip TEXT,
        tip_position BIGINT NOT NULL,
        next_position BIGINT NOT NULL,
        PRIMARY KEY (tenant, id)
    )
    """,
    """
    CREATE TABLE slipring_conversation_items (
        tenant TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        position BIGINT NOT NULL,
        id TEXT NOT NULL,
        data BYTEA NOT NULL,
        PRIMARY KEY (tenant, conversation_id, position),
        UNIQUE (tenant, conversation_id, id),
        FOREIGN KEY (tenant, conversation_id)
            REFERENCES slipring_conversations (tenant, id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE slipring_runs (
        tenant TEXT NOT NULL,
        response_id TEXT NOT NULL,
        status TEXT NOT NULL,
        owner TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        lease_until DOUBLE PRECISION NOT NULL,
        last_sequence BIGINT NOT NULL,
        response BYTEA NOT NULL,
        expires_at BIGINT NOT NULL,
        PRIMARY KEY (tenant, response_id)
    )
    """,
    """
    CREATE INDEX slipring_runs_leases ON slipring_runs (lease_until)
        WHERE status IN ('queued', 'in_progress')
    """,
    "CREATE INDEX slipring_runs_expiry ON slipring_runs (expires_at)",
    """
    CREATE TABLE slipring_run_events (
        tenant TEXT NOT NULL,
        response_id TEXT NOT NULL,
        sequence_number BIGINT NOT NULL,
        data BYTEA NOT NULL,
        PRIMARY KEY (tenant, response_id, sequence_number),
        FOREIGN KEY (tenant, response_id)
            REFERENCES slipring_runs (tenant, response_id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE slipring_keys (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        digest BYTEA NOT NULL,
        created_at BIGINT NOT NULL,
        name TEXT NOT NULL,
        models BYTEA NOT NULL,
        requests_per_minute BIGINT,
        tokens_per_day BIGINT,
        revoked_at BIGINT
    )
    """,
    """
    CREATE TABLE slipring_usage (
        key_id TEXT NOT NULL,
        period TEXT NOT NULL,
        requests BIGINT NOT NULL,
        tokens BIGINT NOT NULL,
        expires_at DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (key_id, period)
    )
    """,
    "CREATE INDEX slipring_usage_expiry ON slipring_usage (expires_at)",
    "CREATE TABLE slipring_nodes (id TEXT PRIMARY KEY, url TEXT NOT NULL, seen_at DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE slipring_secrets (name TEXT PRIMARY KEY, value BYTEA NOT NULL)",
)

# Used approvals, and the MCP servers and tools of keys; NULL: all.
_SECOND = (
    """
    CREATE TABLE slipring_approvals (
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        expires_at BIGINT NOT NULL,
        PRIMARY KEY (id, tenant)
    )
    """,
    "CREATE INDEX slipring_approvals_expiry ON slipring_approvals (expires_at)",
    "ALTER TABLE slipring_keys ADD COLUMN mcp_servers BYTEA",
    "ALTER TABLE slipring_keys ADD COLUMN mcp_tools BYTEA",
)

# The verdicts of safety checks; NULL: no policy applied.
_THIRD = ("ALTER TABLE slipring_responses ADD COLUMN verdicts BYTEA",)

# From which version on a slipring may use the tables: from the first that asks.
_FOURTH = (
    "CREATE TABLE slipring_oldest_schema (version BIGINT PRIMARY KEY)",
    "INSERT INTO slipring_oldest_schema (version) VALUES (4)",
)

# Where deleted items of conversations were, for clients that list and delete; what open runs began with;
# items of conversations by their ids alone.
_FIFTH = (
    """
    CREATE TABLE slipring_run_beginnings (
        tenant TEXT NOT NULL,
        response_id TEXT NOT NULL,
        parent_id TEXT,
        is_upstream BIGINT NOT NULL,
        instructions BYTEA,
        tools BYTEA NOT NULL,
        input BYTEA NOT NULL,
        PRIMARY KEY (tenant, response_id),
        FOREIGN KEY (tenant, response_id)
            REFERENCES slipring_runs (tenant, response_id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE slipring_deleted_items (
        tenant TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        id TEXT NOT NULL,
        position BIGINT NOT NULL,
        expires_at BIGINT NOT NULL,
        PRIMARY KEY (tenant, conversation_id, id),
        FOREIGN KEY (tenant, conversation_id)
            REFERENCES slipring_conversations (tenant, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX slipring_conversation_items_ids ON slipring_conversation_items (id, tenant)",
    "CREATE INDEX slipring_deleted_items_expiry ON slipring_deleted_items (expires_at)",
)

# Items of responses by the ids that clients chose for them, as digests.
_SIXTH = (
    """
    CREATE TABLE slipring_item_names (
        tenant TEXT NOT NULL,
        response_id TEXT NOT NULL,
        name BYTEA NOT NULL,
        item BYTEA NOT NULL,
        PRIMARY KEY (name, tenant, item, response_id),
        FOREIGN KEY (tenant, response_id) REFERENCES slipring_responses (tenant, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX slipring_item_names_responses ON slipring_item_names (response_id, tenant)",
)

# Pictures, which rows refer to by digests. A response uses them, the beginning of a run, or an item of a
# conversation. Older nodes cannot read rows that lack their pictures.
_SEVENTH = (
    """
    CREATE TABLE slipring_pictures (
        tenant TEXT NOT NULL,
        digest BYTEA NOT NULL,
        data BYTEA NOT NULL,
        PRIMARY KEY (digest, tenant)
    )
    """,
    """
    CREATE TABLE slipring_picture_uses (
        tenant TEXT NOT NULL,
        digest BYTEA NOT NULL,
        response_id TEXT,
        run_id TEXT,
        conversation_id TEXT,
        item_id TEXT,
        FOREIGN KEY (tenant, digest) REFERENCES slipring_pictures (tenant, digest),
        FOREIGN KEY (tenant, response_id) REFERENCES slipring_responses (tenant, id) ON DELETE CASCADE,
        FOREIGN KEY (tenant, run_id)
            REFERENCES slipring_run_beginnings (tenant, response_id) ON DELETE CASCADE,
        FOREIGN KEY (tenant, conversation_id, item_id)
            REFERENCES slipring_conversation_items (tenant, conversation_id, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX slipring_picture_uses_pictures ON slipring_picture_uses (digest, tenant)",
    "CREATE INDEX slipring_picture_uses_responses ON slipring_picture_uses (response_id, tenant)",
    "CREATE INDEX slipring_picture_uses_runs ON slipring_picture_uses (run_id, tenant)",
    "CREATE INDEX slipring_picture_uses_items ON slipring_picture_uses (item_id, conversation_id, tenant)",
)

# The images of keys.
_EIGHTH = (
    "ALTER TABLE slipring_keys ADD COLUMN images_per_minute BIGINT",
    "ALTER TABLE slipring_usage ADD COLUMN images BIGINT NOT NULL DEFAULT 0",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    *(_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH, _EIGHTH),
)


def is_newer(version: int) -> bool:
    """Whether a newer slipring has migrated a database that is at ``version``."""
    return version > len(MIGRATIONS)


def pending(version: int, oldest: int, where: str) -> list[tuple[int, tuple[str, ...]]]:
    """Return the migrations that a database at ``version`` lacks, each with the version that it leads to.

    ``oldest`` is what ``READ_OLDEST`` returns if the database is newer than this slipring, else its version.
    ``where`` names the database in the ``StartupError`` that is raised if this slipring must not use it.
    """
    if oldest > len(MIGRATIONS):
        raise StartupError(
            f"--store {where}: written by a newer slipring (schema version {version}, this one supports"
            f" up to {len(MIGRATIONS)})"
        )
    return [(number, MIGRATIONS[number - 1]) for number in range(version + 1, len(MIGRATIONS) + 1)]
