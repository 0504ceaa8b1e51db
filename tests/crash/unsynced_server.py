"""``python -m tests.crash.unsynced_server LOG …``: slipring with a recorder under SQLite."""

import sys
from pathlib import Path

from slipring.commands.cli import main
from tests.crash.unsynced import Recorder

if __name__ == "__main__":
    recorder = Recorder(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
