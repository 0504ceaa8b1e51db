"""The service level of a load: which latencies and failures a level may have."""

from msgspec import Struct

from slipring.commands.bench.load.results import Level


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
