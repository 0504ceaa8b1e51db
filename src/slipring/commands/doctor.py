"""``slipring doctor``: its flags, the command and the checks. A check returns what it found: one finding, or
one per engine.
"""

import argparse
import asyncio
import logging
import os
import platform
import re
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from slipring.base.errors import StartupError, Unavailable
from slipring.base.progress_line import ProgressLine
from slipring.base.standard_streams import print_encoded
from slipring.config import settings
from slipring.config.settings import ADMIN_AUTO, ADMIN_OFF, Config
from slipring.engines.catalog import check_options, open_engine
from slipring.engines.hub.model_hub import ModelHub
from slipring.engines.hub.model_names import (
    Fetch,
    full_name,
    model_of_flag,
    names_hub_model,
    opened_name,
    to_fetch,
)
from slipring.engines.hub.quantization_and_memory import available_memory, gigabytes
from slipring.server.access.auth import require_admin_key, require_keys
from slipring.server.connections.open_connections import (
    is_room_reduced,
    raise_descriptor_limit,
    room_for_connections,
)
from slipring.server.process.listening_sockets import listen
from slipring.stores.store import default_file, open_store

State = Literal["ok", "warn", "fail"]
_SESSIONS = "sessions are "
"""How a line about them begins, as in the log of an engine."""
_SMALLER = "choose a smaller quantization, as ORG/REPO:QUANTIZATION"
_LITTLE_MEMORY = 1 << 30
_LITTLE_DISK = 1 << 30
_ENGINE_START_S = 120.0
_CONNECT_S = 5.0
_HEAD_BYTES = 65_536
_CLOCKS_APART_S = 30.0
_CERTIFICATE_DAYS = 21
_DAY_S = 86_400.0
_URL = re.compile(r"https?://[^,\s]+")


class Finding(Struct, frozen=True):
    """What one check found, and what to do about it."""

    name: str
    state: State
    what: str
    remedy: str = ""


Check = Callable[[Config], Sequence[Finding]]


def _checked(name: str, what: str, *, is_ok: bool, remedy: str) -> Finding:
    """A warning with its remedy, or the same without one."""
    return Finding(name, "ok", what) if is_ok else Finding(name, "warn", what, remedy)


def check_machine(config: Config) -> list[Finding]:
    memory = available_memory()
    known = f", {gigabytes(memory)} of memory available" if memory is not None else ""
    what = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores{known}"
    is_ok = memory is None or memory >= _LITTLE_MEMORY
    remedy = "a server needs about 0.2 GB, an embedded model more"
    return [_checked("machine", what, is_ok=is_ok, remedy=remedy)]


def check_open_files(config: Config) -> list[Finding]:
    wanted = config.limits.max_connections
    room = room_for_connections(raise_descriptor_limit(), wanted)
    what = f"room for {room} connections, of {wanted} that the settings allow"
    remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE=)"
    return [_checked("open files", what, is_ok=not is_room_reduced(room, wanted), remedy=remedy)]


def check_store(config: Config) -> list[Finding]:
    """Open the store, read from it, and look how much room its disk has."""
    return asyncio.run(_try_store(config))


async def _try_store(config: Config) -> list[Finding]:
    name = config.store.partition(":")[0]
    try:
        store = open_store(config.store, config.limits, is_synced=not config.store_unsynced)
    except StartupError as error:
        return [Finding("store", "fail", str(error))]
    try:
        await store.start()
        await store.try_out()
        if store.trouble:
            return [Finding("store", "fail", store.trouble)]
    except StartupError as error:
        return [Finding("store", "fail", str(error))]
    finally:
        await store.close()
    if name == "memory":
        remedy = "--store sqlite keeps them"
        return [Finding("store", "warn", "memory: responses are lost when the server stops", remedy)]
    if name != "sqlite":
        return [Finding("store", "ok", f"{name}: connected")]
    file = Path(config.store.partition(":")[2] or default_file())
    free = shutil.disk_usage(file.parent).free
    what = f"{file}, {gigabytes(free)} free on its disk"
    remedy = "free some, or set store_bytes and retention_days"
    return [_checked("store", what, is_ok=free >= _LITTLE_DISK, remedy=remedy)]


def check_addresses(config: Config) -> list[Finding]:
    """Bind the addresses that the server would listen on."""
    found = [_bindable("address", config.host, config.port)]
    if config.admin not in (ADMIN_OFF, ADMIN_AUTO):
        host, _, port = config.admin.rpartition(":")
        host = host.strip("[]")
        found.append(_bindable("live page", host, int(port)))
        try:
            require_admin_key(config, host)
        except StartupError as error:
            found.append(Finding("live page", "fail", str(error)))
    return found


def _bindable(name: str, host: str, port: int) -> Finding:
    try:
        listen(host, port).close()
    except StartupError as error:
        return Finding(name, "fail", str(error))
    return Finding(name, "ok", f"{host}:{port} is free")


def check_keys(config: Config) -> list[Finding]:
    """Whether there are keys, in the settings or in the store: without any, only loopback is served."""
    if config.api_key:
        return [Finding("API keys", "ok", f"{len(config.api_key)} in the settings")]
    stores_keys = asyncio.run(_stores_keys(config))
    if stores_keys:
        return [Finding("API keys", "ok", "in the store (slipring keys list)")]
    if stores_keys is None:
        return [Finding("API keys", "warn", "not known: the store, which may have some, cannot be read")]
    try:
        require_keys(config)
    except StartupError as error:
        return [Finding("API keys", "fail", str(error))]
    return [Finding("API keys", "ok", "none: only this machine is served, without keys")]


async def _stores_keys(config: Config) -> bool | None:
    """None: not known."""
    try:
        store = open_store(config.store, config.limits, is_synced=not config.store_unsynced)
        try:
            await store.start()
            return await store.keys.exist()
        finally:
            await store.close()
    except (StartupError, Unavailable):
        return None  # what is wrong with the store is a finding of its own


def check_engines(config: Config) -> list[Finding]:
    """Start every engine, as a server would, and report what it logs then. Of one that a server would fetch
    first, report what that is and whether there is room for it."""
    names = list(dict.fromkeys(entry.engine for entry in config.models))
    if not names:
        try:
            names = [model_of_flag(config.engine, config.model)[0]]
        except StartupError as error:
            return [Finding("engine", "fail", str(error))]
    return [finding for name in names for finding in _check_engine(name)]


def _check_engine(name: str) -> list[Finding]:
    label = f"engine {full_name(name).partition(':')[0]}"
    found = asyncio.run(_check_address(label, name))
    if any(finding.state == "fail" for finding in found):
        return found
    hub = ModelHub()
    with _logged() as lines:
        try:
            if names_hub_model(name):
                check_options(full_name(name))
            if (fetch := to_fetch(name, hub)) is not None:
                return [*found, *_fetched(label, fetch, hub.room)]
            opened = opened_name(name, hub)
        except StartupError as error:
            return [*found, Finding(label, "fail", str(error))]
        found += asyncio.run(_try_engine(label, opened))
    if any(_SESSIONS in line for _, line in lines):  # the engine says itself what is wrong with them
        found = [finding for finding in found if not finding.what.startswith(_SESSIONS)]
    return found + [Finding(label, state, line) for state, line in lines]


def _fetched(label: str, fetch: Fetch, room: int) -> Iterator[Finding]:
    """What a server would fetch for an engine, and whether it fits."""
    what = f"not started: a server fetches {fetch.what} first"
    size = f"{gigabytes(fetch.size)} to fetch, {gigabytes(room)} free on the disk of the hub's cache"
    if fetch.size > room:
        yield Finding(label, "fail", f"{what}: {size}", "free some, or name another place with HF_HOME")
    else:
        yield Finding(label, "ok", f"{what}: {size}")
    memory = available_memory()
    if fetch.needed_memory and memory is not None:
        needed = f"needs {gigabytes(fetch.needed_memory)} of memory, {gigabytes(memory)} are available"
        yield _checked(label, needed, is_ok=fetch.needed_memory <= memory, remedy=_SMALLER)
    if fetch.blind:
        yield Finding(label, "warn", fetch.blind, _SMALLER)


async def _try_engine(label: str, name: str) -> list[Finding]:
    try:
        engine = open_engine(name)
        try:
            await asyncio.wait_for(engine.start(), _ENGINE_START_S)
            models = ", ".join(model.name for model in engine.models())
            trouble, use = engine.trouble, engine.session_use
        finally:
            await engine.close()
    except StartupError as error:
        return [Finding(label, "fail", str(error))]
    except TimeoutError:
        return [Finding(label, "fail", f"did not start within {_ENGINE_START_S:.0f} s")]
    if trouble:
        return [Finding(label, "fail", trouble)]
    found = [Finding(label, "ok", f"serves {models}")]
    return found if use is None else [*found, Finding(label, "ok", f"{_SESSIONS}{use}")]


async def _check_address(label: str, name: str) -> list[Finding]:
    """The certificate and the clock of the server that an engine names, if it names one."""
    url = _URL.search(name)
    if url is None:
        return []
    parts = urlsplit(url[0])
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            answer, certificate = await _ask_head(str(parts.hostname), port, context)
    except ssl.SSLCertVerificationError as error:
        what = f"{parts.hostname}: its certificate is refused: {error.verify_message}"
        return [Finding(label, "fail", what, "SSL_CERT_FILE names further certificates to trust")]
    except (OSError, TimeoutError) as error:
        what = f"nothing answers at {parts.hostname}:{port}: {_reason(error)}"
        return [Finding(label, "fail", what, "start the server, or correct the address")]
    return [*_clock(label, answer), *_certificate(label, certificate)]


async def _ask_head(
    host: str, port: int, context: ssl.SSLContext | None
) -> tuple[bytes, dict[str, str] | None]:
    """What a server answers to a request without content, and its certificate."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(f"HEAD / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        return await reader.read(_HEAD_BYTES), writer.get_extra_info("peercert")
    finally:
        writer.close()


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return (
        os.strerror(number) if number and number > 0 else str(error)
    ) or f"no answer within {_CONNECT_S:.0f} s"


def _clock(label: str, answer: bytes) -> Iterator[Finding]:
    stated = re.search(rb"\r\n[Dd]ate: ([^\r]+)", answer)
    try:
        at = parsedate_to_datetime(stated[1].decode()).timestamp() if stated else None
    except (ValueError, TypeError):
        at = None
    if at is not None and abs(apart := time.time() - at) > _CLOCKS_APART_S:
        what = f"its clock and this machine's are {abs(apart):.0f} s apart"
        yield Finding(label, "warn", what, "keys, leases and traces depend on clocks: synchronise them (NTP)")


def _certificate(label: str, certificate: dict[str, str] | None) -> Iterator[Finding]:
    if certificate and (ends := certificate.get("notAfter")):
        days = (ssl.cert_time_to_seconds(ends) - time.time()) / _DAY_S
        if days < _CERTIFICATE_DAYS:
            yield Finding(label, "warn", f"its certificate ends in {days:.0f} days", "renew it")


@contextmanager
def _logged() -> Iterator[list[tuple[State, str]]]:
    """What slipring logs within the block, instead of writing it."""
    lines: list[tuple[State, str]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(("warn" if record.levelno >= logging.WARNING else "ok", record.getMessage()))

    logger, collector = logging.getLogger("slipring"), Collector(logging.INFO)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagates


def require_start(config: Config) -> None:
    """Raise ``StartupError`` for what would keep a server from starting, its engines apart."""
    for check in (check_addresses, check_keys, check_store):
        for finding in check(config):
            if finding.state == "fail":
                raise StartupError(f"{finding.what} ({finding.remedy})" if finding.remedy else finding.what)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("the machine", check_machine),
    ("open files", check_open_files),
    ("addresses", check_addresses),
    ("API keys", check_keys),
    ("the store", check_store),
    ("engines", check_engines),
)


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
