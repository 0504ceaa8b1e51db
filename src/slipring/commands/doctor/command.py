"""``slipring doctor``: its flags, and the command."""

import argparse
import sys

import msgspec

from slipring.base.progress import ProgressLine
from slipring.base.standard_streams import print_encoded
from slipring.commands.doctor.checks import CHECKS, Finding
from slipring.config import settings
from slipring.config.settings import Config

FAILED = 1
_COLORS = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``serve``, whose server is checked, and ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    settings.add_flags(parser)


def doctor(arguments: argparse.Namespace, config: Config) -> int:
    """Run all checks and print what they found. Returns the exit code: 1 if a server would not start."""
    found = _run(config)
    if arguments.json:
        print_encoded(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    else:
        width = max(len(finding.name) for finding in found)
        for finding in found:
            print(_line(finding, width, colored=sys.stdout.isatty()))
    return FAILED if any(finding.state == "fail" for finding in found) else 0


def _run(config: Config) -> list[Finding]:
    found: list[Finding] = []
    with ProgressLine() as progress:
        for name, check in CHECKS:
            progress.show(f"checking {name}", restarts=True)
            found += check(config)
    return found


def _line(finding: Finding, width: int, *, colored: bool) -> str:
    state = f"{finding.state:<4}"
    if colored:
        state = f"{_COLORS[finding.state]}{state}{_PLAIN}"
    remedy = f" ({finding.remedy})" if finding.remedy else ""
    return f"{state}  {finding.name:<{width}}  {finding.what}{remedy}"
