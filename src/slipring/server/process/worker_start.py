"""The program of a worker process: ``python -m slipring.server.process.worker_start``."""

import sys

from slipring.base.garbage_collection import collection_paused

if __name__ == "__main__":
    with collection_paused():
        from slipring.server.process.worker import main
    sys.exit(main())
