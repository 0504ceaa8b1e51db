"""Finds out what an endpoint supports by trying: its first model, each mode, stage times and digests.

Each mode is tried with two or three turns, which also warm up the server. A mode that fails here is skipped
with the reason; faulty answers are left for the measurement to find.
"""

import aiohttp
import msgspec
from msgspec import Struct

from slipring.commands.argument_parser import CommandFailed
from slipring.commands.bench.client.exchange import (
    PAUSE,
    TIMING,
    CannotConnect,
    Fields,
    MalformedAnswer,
    RefusedByServer,
    TurnExchange,
    TurnFailed,
)
from slipring.commands.bench.client.transports import Access, Transport, connection_error, refused
from slipring.commands.bench.client.turn_requests import KEEP_REASONING, Chain, Context
from slipring.commands.bench.measure.modes import Mode
from slipring.commands.bench.verification import find_digest
from slipring.commands.bench.workloads.plan import message
from slipring.commands.bench.workloads.tools import CODING_TOOLS

_OK = 200
_NOT_FOUND = 404
_KEY_REFUSED = (401, 403)
_LANE = "probe"


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class Capabilities(Struct, kw_only=True):
    """What an endpoint supports."""

    modes: list[Mode]
    skipped: dict[str, str]
    """Mode name to the reason why it cannot be measured."""
    statuses: set[int | None] = set()
    """HTTP statuses with which modes were refused; None for modes that failed otherwise."""
    has_digests: bool = False
    keeps_reasoning: bool = True
    """Whether it returns reasoning that can be sent back."""


async def first_model(access: Access) -> str:
    """The first model that the endpoint lists. Raises ``CommandFailed``."""
    url = f"{access.name}/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=access.timeout_s)) as http,
            http.get(f"{access.base_url}/models", headers=access.headers()) as answer,
        ):
            if answer.status != _OK:
                raise await refused(answer)
            models = msgspec.json.decode(await answer.read(), type=_Models).data
    except TimeoutError:
        raise CommandFailed(f"cannot reach {access.name}: no answer in {access.timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        reason = access.redact(str(connection_error(error)))
        raise CommandFailed(f"cannot reach {access.name}: {reason}") from None
    except RefusedByServer as error:
        if error.status in _KEY_REFUSED:
            raise _key_refused(access, str(error)) from None
        hint = "check the path in --url, or " if error.status == _NOT_FOUND else ""
        reason = access.redact(str(error))
        raise CommandFailed(f"{url} answered {reason}: {hint}name a model with --model") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        kind = access.redact(answer.content_type)
        raise CommandFailed(
            f"{url} returned {kind} and no list of models: check --url, or name a model with --model"
        ) from None
    if not models:
        raise CommandFailed(f"{url} lists no models: name one with --model")
    return models[0].id


def base_fields(model: str, max_output_tokens: int | None) -> Fields:
    """The fields that every request of a run has in common."""
    if max_output_tokens is None:
        return {"model": model}
    return {"model": model, "max_output_tokens": max_output_tokens}


async def probe(access: Access, head: Fields, modes: list[Mode]) -> Capabilities:
    """Try all modes. Records in ``access`` which transports report stage times. Raises ``CommandFailed`` if
    no connection can be opened."""
    found = Capabilities(modes=[], skipped={})
    for mode in modes:
        try:
            exchange = await _try(access, head, mode, found)
        except CannotConnect as error:
            raise CommandFailed(f"cannot reach {access.name}: {access.redact(str(error))}") from None
        except TurnFailed as error:
            found.skipped[mode.name] = access.redact(str(error))
            found.statuses.add(error.status if isinstance(error, RefusedByServer) else None)
        except TimeoutError:
            found.skipped[mode.name] = "no answer in time"
            found.statuses.add(None)
        else:
            found.modes.append(mode)
            found.has_digests |= find_digest(exchange.answer) is not None
    return found


def nothing_to_measure(access: Access, found: Capabilities) -> CommandFailed:
    """The exception for an endpoint that supports none of the modes."""
    modes: dict[str, list[str]] = {}
    for mode, reason in found.skipped.items():
        modes.setdefault(reason, []).append(mode)
    if found.statuses <= set(_KEY_REFUSED):
        return _key_refused(access, next(iter(modes)))
    if found.statuses == {_NOT_FOUND} and any(not mode.startswith("websocket") for mode in found.skipped):
        return CommandFailed(f"{access.name}{access.path} answered 404: check the path in --url")
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in modes.items())
    return CommandFailed(f"cannot measure {access.name}: {reasons}")


def _key_refused(access: Access, reason: str) -> CommandFailed:
    verdict = "refused the API key" if access.has_key else "requires an API key"
    return CommandFailed(f"{access.name} {verdict} ({access.redact(reason)}): see --api-key-env")


async def _try(access: Access, head: Fields, mode: Mode, found: Capabilities) -> TurnExchange:
    """Run a few turns in a mode; returns the last. After a refusal, tries again without asking for
    reasoning."""
    if mode.sends_history and found.keeps_reasoning:
        try:
            return await _turns(access, {**head, **KEEP_REASONING}, mode)
        except RefusedByServer:
            exchange = await _turns(access, head, mode)  # raises if reasoning was not the cause
            found.keeps_reasoning = False
            return exchange
    return await _turns(access, head, mode)


async def _turns(access: Access, head: Fields, mode: Mode) -> TurnExchange:
    """Two turns, and for a rollout one that must stay open; returns the last."""
    lane = _LANE if mode.has_lanes else None
    context = Chain() if mode.is_rollout else mode.context()
    async with mode.open(access) as transport:
        for text in ("Say a word.", "Say another."):
            exchange = await transport.turn(context.request(head, [message(text)]), lane)
            if exchange.response is None:
                raise MalformedAnswer("no terminal event")
            if lane is not None and exchange.events[0].get("stream_id") != lane:
                raise RefusedByServer("the answer to a request with a stream_id has none")
            context.learn(exchange)
        if any(event.get("type") == TIMING for event in exchange.events):
            access.timed.add(type(transport))
        return await _try_rollout(transport, mode.context(), head) if mode.is_rollout else exchange


async def _try_rollout(transport: Transport, context: Context, head: Fields) -> TurnExchange:
    """Force a call; the response must then wait for its output."""
    head = {**head, "tools": CODING_TOOLS[:1], "tool_choice": "required"}
    exchange = await transport.turn(context.request(head, [message("Read a file.")]))
    if exchange.events[-1]["type"] != PAUSE:
        raise RefusedByServer("the response ended instead of waiting for the output of its call")
    return exchange
