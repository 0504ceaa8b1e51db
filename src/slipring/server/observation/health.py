"""The health of a server, for load balancers and operators."""

import os

from slipring import __version__
from slipring.protocol.endpoints.reply_bodies import CheckHealth, EngineHealth, Health
from slipring.server.service import Service


def health_of(service: Service) -> tuple[Health, int]:
    """The body of ``GET /health`` and its status: 503 if no request can be served."""
    engines = [EngineHealth(engine.name, engine.trouble) for engine in service.catalog.engines]
    in_trouble = [engine for engine in engines if engine.trouble is not None]
    serves = not service.draining and len(in_trouble) < len(engines)
    trouble = service.connections.trouble
    checks = [CheckHealth(check.name, check.trouble) for check in service.inspector.status()]
    is_degraded = in_trouble or trouble or any(check.trouble for check in checks)
    body = Health(
        status="draining" if service.draining else "degraded" if is_degraded else "ok",
        version=__version__,
        pid=os.getpid(),
        engines=engines,
        store=service.store.name,
        connections=service.sockets,
        render_fallbacks=service.render_fallbacks,
        trouble=trouble,
        traces=service.traces,
        checks=checks,
    )
    return body, 200 if serves else 503
