"""All scenarios of `make test-crash`, by name."""

from collections.abc import Callable

from tests.crash.sites import NodesSite, PostgresSite, Site, SqliteSite, WorkersSite
from tests.crash.unsynced import UnsyncedSite

SCENARIOS: dict[str, Callable[[], Site]] = {
    site.name: site for site in (SqliteSite, WorkersSite, PostgresSite, NodesSite, UnsyncedSite)
}
