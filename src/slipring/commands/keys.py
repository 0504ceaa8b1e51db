"""``slipring keys``: create, list and revoke the API keys in a store.

Standard output receives what a script would read, standard error the messages for people. A secret is printed
once, when its key is created. Servers on the same store find the keys there.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from slipring.base.errors import StartupError, Unavailable
from slipring.base.progress_line import ProgressLine
from slipring.base.standard_streams import print_encoded, table
from slipring.config import settings
from slipring.config.settings import Config, ConfigError
from slipring.protocol import wire
from slipring.stores.keys import Key, Token
from slipring.stores.store import Store, open_store

NOT_REVOKED = 1
_QUOTAS = {
    "requests-per-minute": "turns in a minute",
    "tokens-per-day": "tokens in a day, input and output",
    "images-per-minute": "images that models are shown in a minute",
}
_COLUMNS = (
    "ID",
    "TENANT",
    "NAME",
    "MODELS",
    "MCP",
    "REQUESTS/MIN",
    "TOKENS/DAY",
    "IMAGES/MIN",
    "CREATED",
    "REVOKED",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the commands that ``manage`` executes."""
    commands = parser.add_subparsers(dest="keys_command", required=True)
    create = commands.add_parser(
        "create",
        help="create a key and print it",
        description="Create a key and print it on standard output. It cannot be shown again.",
    )
    _add_create_flags(create)
    show = commands.add_parser("list", help="list all keys", description="List all keys, without secrets.")
    show.add_argument("--json", action="store_true", help="print a JSON array")
    revoke = commands.add_parser(
        "revoke",
        help="revoke a key",
        description="Revoke a key: the server refuses the next turn that uses it.",
    )
    revoke.add_argument(
        "id", metavar="ID", type=_key_id, help="id of the key, as printed by list, or the key itself"
    )
    for command in (create, show, revoke):
        settings.add_flags(command, only=("store",))


def _add_create_flags(create: argparse.ArgumentParser) -> None:
    create.add_argument(
        "--tenant", required=True, type=_text, help="owner of the key; tenants cannot see each other's data"
    )
    create.add_argument("--name", type=_text, metavar="LABEL", help="description of the key, for people")
    create.add_argument(
        "--model",
        dest="permitted",
        action="append",
        type=_text,
        default=[],
        metavar="NAME",
        help="model that the key may use (repeatable; default: all models)",
    )
    for quota, what in _QUOTAS.items():
        create.add_argument(f"--{quota}", type=_quota, metavar="N", help=f"maximum number of {what}")
    servers = create.add_mutually_exclusive_group()
    servers.add_argument("--no-mcp", action="store_true", help="the key may use no MCP server at all")
    servers.add_argument(
        "--mcp-server",
        action="append",
        type=_text,
        default=[],
        metavar="NAME",
        help="registered MCP server that the key may use (repeatable; default: all)",
    )
    create.add_argument(
        "--mcp-tool",
        action="append",
        type=_mcp_tool,
        default=[],
        metavar="SERVER.TOOL",
        help="tool of an MCP server that the key may use (repeatable; default: all tools of the server)",
    )


def _text(given: str) -> str:
    if not given.strip() or not given.isprintable():
        raise argparse.ArgumentTypeError("must be printable and not empty")
    return given.strip()


def _quota(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and 0 < int(given) < 2**63):
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return int(given)


def _key_id(given: str) -> str:
    """The id of the key that is meant. No message repeats what was given: it may be a secret."""
    key_id = Token.id_in(given)
    if key_id is None:
        raise argparse.ArgumentTypeError(
            "must be the id of a key in the store, 16 digits as list prints them, or such a key"
        )
    return key_id


def _mcp_tool(given: str) -> str:
    server, _, tool = _text(given).partition(".")
    if not server or not tool:
        raise argparse.ArgumentTypeError("must be SERVER.TOOL")
    return f"{server}.{tool}"


def manage(arguments: argparse.Namespace, config: Config) -> int:
    """Execute a command and return its exit code. Raises ``StartupError`` if the store cannot be used."""
    return asyncio.run(_run(arguments, config))


async def _run(arguments: argparse.Namespace, config: Config) -> int:
    async with _opened(config) as store:
        if arguments.keys_command == "create":
            return await _create(store, arguments)
        if arguments.keys_command == "list":
            return await _list(store, as_json=arguments.json)
        return await _revoke(store, arguments.id)


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[Store]:
    store = open_store(config.store, config.limits)
    if not store.is_shared:
        raise ConfigError(
            f"the store '{config.store}' does not keep keys after this command: name a database with --store"
            " or SLIPRING_STORE"
        )
    try:
        with ProgressLine("opening the store"):
            await store.start()
        yield store
    except Unavailable as error:
        raise StartupError(error.message) from None
    finally:
        await store.close()


async def _create(store: Store, arguments: argparse.Namespace) -> int:
    token = Token.generate()
    key = Key(
        id=token.id,
        tenant=arguments.tenant,
        digest=token.digest,
        created_at=int(time.time()),
        name=arguments.name or "",
        models=tuple(dict.fromkeys(arguments.permitted)),
        requests_per_minute=arguments.requests_per_minute,
        tokens_per_day=arguments.tokens_per_day,
        images_per_minute=arguments.images_per_minute,
        mcp_servers=_servers(arguments),
        mcp_tools=tuple(dict.fromkeys(arguments.mcp_tool)),
    )
    await store.keys.create(key)
    try:
        print(token.reveal(), flush=True)
    except OSError:
        await store.keys.revoke(key.id, int(time.time()))
        print(f"slipring: key {key.id} could not be printed, and is revoked", file=sys.stderr)
        raise
    print(
        f"slipring: created key {key.id} of tenant '{key.tenant}'; it cannot be shown again", file=sys.stderr
    )
    return 0


def _servers(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """The MCP servers that a new key may use; None: all."""
    named = tuple(dict.fromkeys(arguments.mcp_server))
    return named if named or arguments.no_mcp else None


async def _list(store: Store, *, as_json: bool) -> int:
    keys = await store.keys.list()
    if as_json:
        print_encoded(wire.encode([_public_fields(key) for key in keys]))
    else:
        print(table([_COLUMNS, *map(_row, keys)]))
    return 0


async def _revoke(store: Store, key_id: str) -> int:
    if await store.keys.revoke(key_id, int(time.time())):
        print(f"slipring: key {key_id} is revoked", file=sys.stderr)
        return 0
    key = await store.keys.find(key_id)
    if key is None:
        print(f"slipring: there is no key {key_id} in this store", file=sys.stderr)
    else:
        print(f"slipring: key {key_id} was revoked before, at {_date(key.revoked_at)}", file=sys.stderr)
    return NOT_REVOKED


def _public_fields(key: Key) -> dict[str, Any]:
    """The fields of a key that may be shown: all but the digest."""
    fields = structs.asdict(key)
    del fields["digest"]
    return fields


def _row(key: Key) -> Sequence[str]:
    return (
        key.id,
        key.tenant,
        key.name or "-",
        ", ".join(key.models) or "all",
        "none" if key.mcp_servers == () else ", ".join((*(key.mcp_servers or ()), *key.mcp_tools)) or "all",
        _or_dash(key.requests_per_minute),
        _or_dash(key.tokens_per_day),
        _or_dash(key.images_per_minute),
        _date(key.created_at),
        _date(key.revoked_at),
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _date(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
