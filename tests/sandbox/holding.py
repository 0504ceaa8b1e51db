"""``check_grammar`` as servers run it, except that some definitions block or crash the child."""

import os
from pathlib import Path

from slipring.engines.constraints import grammar_checks

HOLD = "hold "


def check_grammar(syntax: str, definition: str, max_states: int) -> str | None:
    """``hold PATH`` blocks until the named pipe is written to; ``crash`` aborts the process."""
    if definition.startswith(HOLD):
        # Opening the pipe for reading lets the writer know that the call has started.
        Path(definition.removeprefix(HOLD)).read_text()
        return None
    if definition == "crash":
        os.abort()
    return grammar_checks.check_grammar(syntax, definition, max_states)
