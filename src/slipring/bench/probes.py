"""What an endpoint can do, found out by trying: its model, its modes, whether it tells times and digests.

Each mode is tried with a turn or two. What is refused there is not supported, and the reason is kept;
answers that are wrong are left for the measurement to find. This warms the server up as well.
"""

import aiohttp
from msgspec import Struct

from slipring.bench import digests
from slipring.bench.exchange import PAUSE, TIMING, Exchange, Fields, Lost, Refused
from slipring.bench.modes import Context, Mode
from slipring.bench.transports import Access, Transport
from slipring.bench.workloads.plan import message
from slipring.bench.workloads.tools import CODING_TOOLS

_OK = 200
_LANE = "probe"
_CALL_TOKENS = 256
"""Enough for a whole call, where answers are bounded."""


class Unmeasurable(Exception):
    """The endpoint cannot be measured at all. The text is one line."""


class Findings(Struct, kw_only=True):
    """What the endpoint can do."""

    modes: list[Mode]
    skipped: dict[str, str]
    """By mode: why it cannot be measured."""
    gives_digests: bool = False


async def first_model(url: str, access: Access) -> str:
    """The model to ask where nobody has named one."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=access.timeout_s)) as http,
            http.get(f"{url.rstrip('/')}/models", headers=access.headers()) as answer,
        ):
            if answer.status == _OK:
                models = (await answer.json())["data"]
                return str(models[0]["id"])
            reason = f"answered {answer.status}"
    except (aiohttp.ClientError, OSError) as error:
        raise Unmeasurable(f"cannot reach {url}: {' '.join(str(error).split())}") from None
    except (ValueError, LookupError, TypeError):
        reason = "named none"
    raise Unmeasurable(f"{url}/models {reason}: name a model with --model")


def limited(model: str, max_output_tokens: int | None) -> Fields:
    """What every create begins with."""
    if max_output_tokens is None:
        return {"model": model}
    return {"model": model, "max_output_tokens": max_output_tokens}


async def probe(access: Access, head: Fields, modes: list[Mode]) -> Findings:
    """Try all modes. What is learnt about timing is noted in ``access``."""
    findings = Findings(modes=[], skipped={})
    for mode in modes:
        try:
            exchange = await _try(access, head, mode)
        except (Refused, Lost) as error:
            findings.skipped[mode.name] = str(error)
            continue
        except TimeoutError:
            findings.skipped[mode.name] = "no answer in time"
            continue
        findings.modes.append(mode)
        findings.gives_digests |= digests.found_in(exchange.answer) is not None
        access.gives_timing |= any(event.get("type") == TIMING for event in exchange.events)
    return findings


async def _try(access: Access, head: Fields, mode: Mode) -> Exchange:
    """Two turns in a mode; the last of them."""
    lane = _LANE if mode.has_lanes else None
    context = mode.context()
    async with mode.open(access) as transport:
        if mode.is_rollout:
            return await _try_rollout(transport, context, head)
        for text in ("Say a word.", "Say another."):
            exchange = await transport.turn(context.request(head, [message(text)]), lane)
            if exchange.response is None:
                raise Lost("the answer has no terminal event")
            if lane is not None and exchange.events[0].get("stream_id") != lane:
                raise Refused("the answer to a stream_id names none")
            context.learn(exchange)
    return exchange


async def _try_rollout(transport: Transport, context: Context, head: Fields) -> Exchange:
    """A response that is made to call a tool, and should stay open."""
    head = {**head, "tools": CODING_TOOLS[:1], "tool_choice": "required"}
    if "max_output_tokens" in head:
        head["max_output_tokens"] = _CALL_TOKENS
    exchange = await transport.turn(context.request(head, [message("Read a file.")]))
    if exchange.events[-1]["type"] != PAUSE:
        raise Refused("the response ended where it should have waited for the output of a call")
    return exchange
