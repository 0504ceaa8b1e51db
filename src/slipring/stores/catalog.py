"""Which stores there are, by the name that an operator gives."""

from slipring.core.limits import Limits
from slipring.errors import StartupError
from slipring.stores.base import Store
from slipring.stores.memory import MemoryStore


def open_store(spec: str, limits: Limits) -> Store:
    """Make the store that ``spec`` names. It is not started yet."""
    if spec == "memory":
        return MemoryStore(limits.store_bytes)
    raise StartupError(f"--store {spec}: unknown store (known: memory)")
