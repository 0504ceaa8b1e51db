"""The Agents SDK, imported when a test first uses it: importing takes as long as running twenty loops, and
only one of the processes that share the tests runs those that need it.

Modules import this one, not ``agents``: pytest reads attributes of whatever a test module has, which would
import the SDK while tests are collected.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING


def _imported_late(name: str) -> ModuleType:
    """A package that is imported when one of its attributes is read first."""
    spec = find_spec(name)
    assert spec is not None, f"{name} is not installed: see `make install`"
    assert spec.loader is not None
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    import agents as agents
else:
    agents = _imported_late("agents")
