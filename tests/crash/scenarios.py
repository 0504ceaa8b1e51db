"""All scenarios of `make test-crash`, by name, in the order in which they run.

The last one moves this process into namespaces in which PostgreSQL might not start.
"""

from collections.abc import Callable

from tests.crash.disk import DiskSite
from tests.crash.engine import EngineSite
from tests.crash.failover import FailoverSite
from tests.crash.sites import NodesSite, PostgresSite, Site, SqliteSite, WorkersSite
from tests.crash.tools import ToolsSite
from tests.crash.unsynced import UnsyncedSite

SCENARIOS: dict[str, Callable[[], Site]] = {
    "sqlite": SqliteSite,
    "workers": WorkersSite,
    "unsynced": UnsyncedSite,
    "postgresql": PostgresSite,
    "nodes": NodesSite,
    "failover": FailoverSite,
    "engine": EngineSite,
    "tools": ToolsSite,
    "disk": DiskSite,
}
