"""All scenarios of `make test-crash`, by name."""

from collections.abc import Callable

from tests.crash.failover import FailoverSite
from tests.crash.sites import NodesSite, PostgresSite, Site, SqliteSite, WorkersSite
from tests.crash.unsynced import UnsyncedSite

SCENARIOS: dict[str, Callable[[], Site]] = {
    "sqlite": SqliteSite,
    "workers": WorkersSite,
    "unsynced": UnsyncedSite,
    "postgresql": PostgresSite,
    "nodes": NodesSite,
    "failover": FailoverSite,
}
