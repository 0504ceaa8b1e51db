"""What compiling may take."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Bounds:
    """The operator's bounds on one sandbox. Documented as settings in ``core/limits.py``."""

    timeout_s: float = 2.0
    """Processor time of one call."""
    memory_bytes: int = 256 * MIB
    """Memory of a child process, the interpreter included."""
    processes: int = 1
    waiting: int = 16
    """Calls of one tenant that may wait."""
    call_bytes: int = MIB
    """Size of a call, and of its result."""
    cache_bytes: int = 64 * MIB
    """Size of all results that are kept."""

    @property
    def wall_s(self) -> float:
        """After so long a child is ended even if it has used little processor time: it is blocked, or the
        machine has no time for it."""
        return 10 * self.timeout_s
