"""``slipring inspect``: its flags and the command."""

import argparse
import asyncio

import msgspec

from slipring.base.errors import StartupError
from slipring.base.progress_line import ProgressLine
from slipring.base.standard_streams import print_encoded
from slipring.commands.flags import text
from slipring.commands.inspection.printed_report import show
from slipring.engines.hub.model_hub import ModelHub
from slipring.engines.hub.model_names import inspected_name

UNUSABLE = 1


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        metavar="ENGINE",
        type=text,
        help="a GGUF file, a directory of tokenizer files, a model of a hub (ORG/REPO), or an engine as"
        " 'slipring serve' takes it",
    )
    parser.add_argument("--tokens", action="store_true", help="show every token of the sample conversation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def inspect(arguments: argparse.Namespace) -> int:
    """Inspect a model and print the report. Returns the exit code. Raises ``StartupError``."""
    try:
        from slipring.commands.inspection.verdict import report_of

        engine = inspected_name(arguments.engine, ModelHub())
        with ProgressLine("reading the model"):
            report = asyncio.run(report_of(engine))
    except ModuleNotFoundError as error:
        raise StartupError(
            f"{error.name} is not installed (pip install '.[tokens]' in a checkout of slipring)"
        ) from None
    except StartupError as error:
        raise StartupError(str(error).removeprefix("--engine ")) from None
    if arguments.json:
        print_encoded(msgspec.json.format(msgspec.json.encode(report)))
    else:
        show(report, with_tokens=arguments.tokens)
    return 0 if report.works else UNUSABLE
