"""What the memory of a server is used for, against the bounds on it."""

from slipring.observation.live import Memory
from slipring.server.service import Service


def memory_uses(service: Service) -> dict[str, Memory]:
    """Bytes in use and their bound, by use."""
    process, unread, requests = service.scopes.process, service.connections.unread, service.requests
    parking, known, heads, sandbox = service.parking, service.known, service.heads, service.sandbox
    verdicts = service.inspector.cache
    return {
        "states": Memory(process.used_bytes, process.limit_bytes),
        "parked": Memory(parking.used_bytes, parking.limit_bytes),
        "recognised": Memory(known.used_bytes + heads.used_bytes, known.limit_bytes + heads.limit_bytes),
        "requests": Memory(requests.used_bytes, requests.limit_bytes),
        "unread": Memory(unread.used_bytes, unread.limit_bytes),
        "compiled": Memory(sandbox.cached_bytes, sandbox.limits.cache_bytes),
        "verdicts": Memory(verdicts.used_bytes, verdicts.max_bytes),
    }
