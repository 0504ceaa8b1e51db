"""Counts the bytes of each tenant in an SQLite database, by triggers on its tables.

For the memory store, which bounds them. A count is the size of what rows hold, with an estimate of what
SQLite needs to keep a row and its index entries.
"""

_ROW_BYTES = 200
"""What a row takes besides its contents, roughly."""
_CONTENTS = {
    "slipring_heads": ("instructions", "tools"),
    "slipring_responses": ("response", "input", "output", "carry", "position"),
    "slipring_conversations": ("metadata",),
    "slipring_conversation_items": ("data",),
    "slipring_deleted_items": ("id",),
    "slipring_runs": ("response",),
    "slipring_run_events": ("data",),
    "slipring_run_beginnings": ("instructions", "tools", "input"),
    "slipring_approvals": ("id",),
    "slipring_item_names": ("name", "item"),
    "slipring_pictures": ("digest", "data"),
    "slipring_picture_uses": ("digest",),
}
"""The columns of variable size, by table."""

LARGEST = "SELECT tenant, bytes FROM slipring_tenant_bytes ORDER BY bytes DESC LIMIT $1"
"""The tenants with the most bytes, and how many they have."""


def statements() -> list[str]:
    """Return the statements that create the table of counts and its triggers in an empty database."""
    created = ["CREATE TABLE slipring_tenant_bytes (tenant TEXT PRIMARY KEY, bytes BIGINT NOT NULL)"]
    for table, columns in _CONTENTS.items():
        created += [
            _trigger(table, "insert", "INSERT", _grow("new", _size("new", columns))),
            _trigger(table, "delete", "DELETE", _grow("old", f"-({_size('old', columns)})")),
            _trigger(
                table,
                "update",
                f"UPDATE OF {', '.join(columns)}",
                _grow("new", f"{_size('new', columns)} - ({_size('old', columns)})"),
            ),
        ]
    return created


def _size(row: str, columns: tuple[str, ...]) -> str:
    return " + ".join([str(_ROW_BYTES), *(f"COALESCE(LENGTH({row}.{name}), 0)" for name in columns)])


def _grow(row: str, size: str) -> str:
    # Not an upsert: within a trigger, the conflict clause of the statement that fired it would apply.
    return f"""
        INSERT INTO slipring_tenant_bytes (tenant, bytes) SELECT {row}.tenant, 0
            WHERE NOT EXISTS (SELECT 1 FROM slipring_tenant_bytes WHERE tenant = {row}.tenant);
        UPDATE slipring_tenant_bytes SET bytes = bytes + ({size}) WHERE tenant = {row}.tenant;
        DELETE FROM slipring_tenant_bytes WHERE tenant = {row}.tenant AND bytes = 0;
    """


def _trigger(table: str, name: str, event: str, body: str) -> str:
    return f"CREATE TRIGGER {table}_bytes_{name} AFTER {event} ON {table} BEGIN {body} END"
