"""An MCP server on standard input and output that prints its environment and dies."""

import os
import sys

print(dict(os.environ), file=sys.stderr)
print(dict(os.environ))
sys.exit(dict(os.environ))  # type: ignore[arg-type]
