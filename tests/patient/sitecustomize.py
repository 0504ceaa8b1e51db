"""Makes time limits of slipring long that only a busy machine exceeds in the tests.

They end what hangs: connections, starts, last reports. A test of what happens then sets its own. Limits are
set in each module once it has been imported, in the process of the tests, and in every other interpreter
that finds this directory on ``PYTHONPATH``.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_S = 600.0
_DEFAULTS = {("slipring.config.tables", "CheckEntry"): {"timeout_s": _S}}
"""By module and class: parameters that are not given."""
_LIMITS: dict[str, dict[str, float]] = {
    "slipring.commands.chat.connection": {"_OPEN_TIMEOUT_S": _S, "_MODELS_TIMEOUT_S": _S},
    "slipring.commands.launch": {"_TIMEOUT_S": _S, "_STOP_TIMEOUT_S": _S},
    "slipring.config.tables": {},
    "slipring.engines.responses.engine": {"_COUNT_S": _S},
    "slipring.engines.tokens.sessions": {"_PATIENCE_S": _S},
    "slipring.mcp.transports.http_transports": {"_NOTICE_S": _S},
    "slipring.mcp.transports.addresses": {"_LOOKUP_S": _S},
    "slipring.safety.sources.moderations": {"_CONNECT_TIMEOUT_S": _S},
    "slipring.sandbox.sandbox": {"_START_TIMEOUT_S": _S},
    "slipring.server.admin.workers_source": {"_DETAIL_TIMEOUT_S": _S},
    "slipring.server.image_fetching": {"_TOTAL_S": _S, "_CONNECT_S": _S},
    "slipring.server.observation.health": {"_PATIENCE_S": _S},
    "slipring.base.periodic_tasks": {"_LAST_RUN_S": _S},
    "slipring.server.process.supervisor": {"_DRAIN_REPORT_S": _S, "_OVERTIME_S": _S},
    "slipring.server.observation.recorder": {"_CLOSE_S": _S},
    "slipring.server.tracing.span_export": {"_STOP_S": _S},
    "slipring.stores.databases.postgres": {"_CONNECT_S": _S, "_COMMAND_S": _S, "_CLOSE_S": _S},
    "slipring.stores.databases.sqlite": {"_BUSY_MS": int(_S * 1000), "_START_S": _S},
}


def _set_limits(module: ModuleType) -> None:
    for name, value in _LIMITS[module.__name__].items():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)
    for (place, owner), defaults in _DEFAULTS.items():
        if place == module.__name__:
            make = vars(module)[owner].__init__
            names = make.__code__.co_varnames[: make.__code__.co_argcount][-len(make.__defaults__) :]
            given = dict(zip(names, make.__defaults__, strict=True))
            assert defaults.keys() <= given.keys(), f"{place}.{owner}: no such default"
            make.__defaults__ = tuple((given | defaults).values())


class _Finder:
    """Finds the modules in which limits are set. Each is imported once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _LIMITS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_set(module: ModuleType) -> None:
            execute(module)
            _set_limits(module)

        spec.loader.exec_module = execute_and_set  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
for _name in _LIMITS:
    if _name in sys.modules:
        _set_limits(sys.modules[_name])
