"""The figures of one level of a load, and the service level that it is held against."""

from msgspec import Struct


class Percentiles(Struct, kw_only=True):
    """Percentiles by nearest rank, so each is one of the measured values."""

    p50: float
    p95: float
    p99: float
    high: float
    count: int


class Level(Struct, kw_only=True, omit_defaults=True):
    """Figures of one level: a fixed number of connections, measured for some time."""

    connections: int
    """Requested connections."""
    open_connections: int = 0
    """Connections that were open at the end."""
    idle: int = 0
    """Requested idle connections, beside those of users."""
    open_idle: int = 0
    """Idle connections that were open at the end."""
    seconds: float
    turns: int
    turns_per_s: float
    first_token_ms: Percentiles | None = None
    """Time to the first token of finished turns. A turn that still waits at the end, and longer than the
    service level allows, counts with the time that it has waited."""
    turn_ms: Percentiles | None = None
    """Time from the request to the last event of finished turns."""
    gap_ms: Percentiles | None = None
    """Time between two successive deltas of an answer."""
    lag_ms: Percentiles | None = None
    """Delay of the last delta of an answer, relative to its first delta and the simulated decoding speed;
    None if that is not known."""
    pace: float | None = None
    """The speed of the answers from their first delta on, as a share of the simulated decoding speed; None if
    that is not known. An answer that catches up after a late first delta counts as 1."""
    waiting: int = 0
    """Turns without a first token, and connections still being opened, at the end."""
    waiting_late: int = 0
    """Those of ``waiting`` that had waited longer than the service level allows."""
    stalled: int = 0
    """Turns whose answer had begun, but without an event for longer than the service level allows."""
    server_cores: float | None = None
    """CPU use of the server, in cores."""
    client_cores: float = 0.0
    """CPU use of all processes of the bench. If it is near 1 for each, the bench itself is the bottleneck."""
    others_cores: float | None = None
    """CPU use of all other processes on the machine."""
    resident_bytes: int | None = None
    bytes_per_connection: float | None = None
    """Growth of the server's memory since before the first connection, per open connection."""
    errors: dict[str, int] = {}
    broken: str | None = None
    """How the level violated the service level; None if it held."""

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class ServiceLevel(Struct, kw_only=True, frozen=True):
    """Limits that a level must hold."""

    first_token_ms: float
    """Limit at p95."""
    errors: float
    """Limit of failed turns, as a share of all."""
    pace: float = 0.0
    """Least pace of the answers, where it is known."""

    def broken_by(self, level: Level) -> str | None:
        """How a level violates the limits; None if it holds them."""
        attempts = level.turns + level.failed
        if attempts and level.failed / attempts > self.errors:
            share = level.failed / attempts
            return f"{share:.1%} of turns failed (allowed: {self.errors:.1%})"
        if level.open_idle < level.idle:
            return f"{level.idle - level.open_idle:,} of {level.idle:,} idle connections were refused or lost"
        if level.first_token_ms is None:
            return "no turn finished"
        if level.first_token_ms.p95 > self.first_token_ms:
            late = level.first_token_ms.p95
            return f"first token after {late:,.0f} ms at p95 (allowed: {self.first_token_ms:,.0f} ms)"
        if level.pace is not None and level.pace < self.pace:
            return f"answers came at {level.pace:.1%} of their pace (allowed: {self.pace:.1%})"
        return None
