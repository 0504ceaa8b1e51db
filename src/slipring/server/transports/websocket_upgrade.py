"""Whether a GET asks for an upgrade to a WebSocket, and what it is answered if it does not."""

from aiohttp import web

from slipring.base.errors import InvalidRequest

UPGRADE_HEADERS = {"Upgrade": "websocket", "Connection": "Upgrade"}
"""Of the answer that asks for the upgrade."""


class UpgradeRequired(InvalidRequest):
    """A request without an upgrade to a WebSocket. Clients fall back to HTTP when they get this status."""

    status = 426
    code = "upgrade_required"


def asks_for_upgrade(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def require_upgrade(request: web.Request, others: str = "") -> None:
    """Raise ``UpgradeRequired`` for a request that does not ask for it. ``others``: what else may be sent to
    the same path."""
    if not asks_for_upgrade(request):
        raise UpgradeRequired(f"This endpoint takes {others}GET with an upgrade to a WebSocket.")
