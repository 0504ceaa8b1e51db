"""Shows the server in this process on the admin listener."""

import time
from collections.abc import Callable

from slipring import __version__
from slipring.observation import live_messages
from slipring.observation.metric_counts import Snapshot
from slipring.server.admin.live_view import LiveFeed, LiveView
from slipring.server.observation.health import health_of
from slipring.server.observation.metrics import Metrics
from slipring.server.service import Service


class ServerSource:
    """The source of a listener beside a server."""

    def __init__(self, service: Service, view: LiveView, metrics: Metrics, api_url: str) -> None:
        self._service = service
        self._metrics = metrics
        self._view = view
        self._feed = LiveFeed(view)
        self._api_url = api_url
        self._started_at = time.time()

    def greeting(self) -> live_messages.Greeting:
        return live_messages.Greeting(
            version=__version__,
            started_at=self._started_at,
            now=time.time(),
            interval_s=live_messages.INTERVAL_S,
            api_url=self._api_url,
            workers=1,
            departed=live_messages.Totals(),
        )

    def subscribe(self, receive: live_messages.Receive) -> Callable[[], None]:
        return self._feed.subscribe(receive)

    async def detail(self, process: int, number: int) -> live_messages.ConnectionDetail | None:
        return self._view.detail(number) if process == 0 else None

    def metrics(self) -> Snapshot:
        return self._metrics.snapshot()

    def health(self) -> tuple[object, int]:
        return health_of(self._service, self._service.store.trouble)
