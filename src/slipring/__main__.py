"""``python -m slipring``."""

import sys

from slipring.cli import main

sys.exit(main())
