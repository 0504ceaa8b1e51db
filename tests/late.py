"""Packages that are imported when a test first reads them: importing one takes as long as some dozens of
tests, and only some of the processes that share the tests run those that need it.

Test modules import this module, and read its attributes within functions. A lazy module in ``sys.modules``
would be loaded while tests are collected: Hypothesis reads the file name of every module there.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import agents as agents
    from openai.types import beta as beta

_PACKAGES = {"agents": "agents", "beta": "openai.types.beta"}


def __getattr__(name: str) -> ModuleType:
    if name not in _PACKAGES:
        raise AttributeError(name)
    return import_module(_PACKAGES[name])
