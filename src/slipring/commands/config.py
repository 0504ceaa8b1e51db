"""``slipring config``: checks a TOML file, and prints the schema of such files for editors."""

import argparse
import os
from dataclasses import replace

import msgspec

from slipring.base.standard_streams import print_encoded
from slipring.config import settings
from slipring.config.settings import Config
from slipring.config.toml_schema import schema

_STAND_IN = "simulated"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the commands that ``run`` executes."""
    commands = parser.add_subparsers(dest="config_command", required=True)
    check = commands.add_parser(
        "check",
        help="check flags, variables and a file, without starting anything",
        description="Read the settings as 'slipring serve' does, and open what they name without starting it."
        " Exit code 2: a setting is wrong; 3: what it names cannot be used.",
    )
    settings.add_flags(check)
    commands.add_parser(
        "schema",
        help="print the JSON schema of the TOML file",
        description="Print the JSON schema of the TOML file, for editors: see docs/configuration.md.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run a command of ``add_flags``. Raises ``ConfigError`` and ``StartupError``."""
    if arguments.config_command == "check":
        print(f"ok: {check_settings(settings.from_namespace(arguments, os.environ))}")
    else:
        print_encoded(msgspec.json.format(msgspec.json.encode(schema())) + b"\n")
    return 0


def check_settings(config: Config) -> str:
    """Open what the settings name, without starting or fetching anything. Returns what was found, in words.
    Raises ``StartupError``."""
    # Constructors do no network I/O, and refuse what cannot work.
    from slipring.server.process.server import Server

    opened, fetched = _without_hub(config)
    server = Server(opened)
    names = [engine.name for engine in server.catalog.engines]
    engines = ", ".join([*(name for name in names if not fetched or name != _STAND_IN), *fetched])
    given = [f"{len(config.models)} models"] if config.models else []
    given += [f"{len(config.mcp)} MCP servers"] if config.mcp else []
    given += [f"{len(config.checks)} checks"] if config.checks else []
    given += ["a server fetches what the hub has; 'slipring doctor' says how much"] if fetched else []
    return f"engine {'; '.join([engines, *given])}"


def _without_hub(config: Config) -> tuple[Config, list[str]]:
    """The settings with a stand-in for each model that a server fetches from the hub, whose options are
    checked here, and the engines of these models. Raises ``StartupError``."""
    from slipring.engines.catalog import check_options
    from slipring.engines.hub.model_names import full_name, model_of_flag, names_hub_model

    specs = [entry.engine for entry in config.models] or [model_of_flag(config.engine, config.model)[0]]
    fetched = [spec for spec in dict.fromkeys(specs) if names_hub_model(spec)]
    for spec in fetched:
        check_options(full_name(spec))
    opened = [_STAND_IN if spec in fetched else full_name(spec) for spec in specs]
    if not config.models:
        return replace(config, engine=opened[0]), fetched
    entries = zip(config.models, opened, strict=True)
    return replace(config, models=tuple(replace(entry, engine=spec) for entry, spec in entries)), fetched
