"""``python -m tests.wire_recording OLD [OLD …] NEW`` lists the tests in which a new tree sends other things.

Several recordings of the old tree show which tests send something else each time.
"""

import argparse
import sys
from pathlib import Path

from tests.wire_recording.comparison import compare
from tests.wire_recording.recordings import read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_recording", description=__doc__)
    parser.add_argument("old", nargs="+", type=Path, help="recordings of the old tree")
    parser.add_argument("new", type=Path, help="the recording of the new tree")
    parser.add_argument("--only", default="", help="compare only tests whose id begins with this")
    arguments = parser.parse_args()
    olds = [read(directory) for directory in arguments.old]
    found = compare(olds, read(arguments.new), arguments.only)
    print(found.report())
    return 1 if found.differences or found.in_one_only else 0


if __name__ == "__main__":
    sys.exit(main())
