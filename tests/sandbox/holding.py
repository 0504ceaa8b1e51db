"""The tasks of a server, one of which waits where its input says so."""

import os
from pathlib import Path

from slipring.engines.constraints import tool_grammars

HOLD = "hold "


def check_grammar(syntax: str, definition: str, max_states: int) -> str | None:
    """A definition that begins with ``hold`` names a pipe, and is compiled when somebody writes there."""
    if definition.startswith(HOLD):
        # As a pipe is opened by its reader, its writer knows that the call has begun.
        Path(definition.removeprefix(HOLD)).read_text()
        return None
    if definition == "crash":
        os.abort()
    return tool_grammars.check_grammar(syntax, definition, max_states)
