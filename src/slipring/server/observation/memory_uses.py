"""What the memory of a server is used for, against the bounds on it."""

from slipring.observation.live import Memory
from slipring.server.service import Service


def memory_uses(service: Service) -> dict[str, Memory]:
    """Bytes in use and their bound, by use."""
    process, unread, requests = service.scopes.process, service.connections.unread, service.requests
    parking, sandbox = service.parking, service.sandbox
    recognised = (service.known, service.heads, service.items)
    verdicts = service.inspector.cache
    return {
        "states": Memory(process.used_bytes, process.limit_bytes),
        "parked": Memory(parking.used_bytes, parking.limit_bytes),
        "recognised": Memory(
            sum(each.used_bytes for each in recognised), sum(each.limit_bytes for each in recognised)
        ),
        "requests": Memory(requests.used_bytes, requests.limit_bytes),
        "unread": Memory(unread.used_bytes, unread.limit_bytes),
        "compiled": Memory(sandbox.cached_bytes, sandbox.limits.cache_bytes),
        "verdicts": Memory(verdicts.used_bytes, verdicts.max_bytes),
    }
