"""What an endpoint can do, found out by trying: its model, its modes, whether it tells times and digests.

Each mode is tried with a turn or two. What is refused there is not supported, and the reason is kept;
answers that are wrong are left for the measurement to find. This warms the server up as well.
"""

import aiohttp
from msgspec import Struct

from slipring.bench import digests
from slipring.bench.exchange import PAUSE, TIMING, Exchange, Lost, Refused
from slipring.bench.modes import Context, Mode
from slipring.bench.transports import Access, Transport
from slipring.bench.workloads.plan import message
from slipring.bench.workloads.tools import CODING_TOOLS

_OK = 200
_LANE = "probe"


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


async def probe(access: Access, model: str, modes: list[Mode]) -> Findings:
    """Try all modes. What is learnt about timing is noted in ``access``."""
    findings = Findings(modes=[], skipped={})
    for mode in modes:
        try:
            exchange = await _try(access, model, mode)
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


async def _try(access: Access, model: str, mode: Mode) -> Exchange:
    """Two turns in a mode; the last of them."""
    lane = _LANE if mode.has_lanes else None
    context = mode.context()
    async with mode.open(access) as transport:
        if mode.is_rollout:
            return await _try_rollout(transport, context, model)
        for text in ("Say a word.", "Say another."):
            exchange = await transport.turn(context.request({"model": model}, [message(text)]), lane)
            if exchange.response is None:
                raise Lost("the answer has no terminal event")
            if lane is not None and exchange.events[0].get("stream_id") != lane:
                raise Refused("the answer to a stream_id names none")
            context.learn(exchange)
    return exchange


async def _try_rollout(transport: Transport, context: Context, model: str) -> Exchange:
    """A response that is made to call a tool, and should stay open."""
    head = {"model": model, "tools": CODING_TOOLS[:1], "tool_choice": "required"}
    exchange = await transport.turn(context.request(head, [message("Read a file.")]))
    if exchange.events[-1]["type"] != PAUSE:
        raise Refused("the response ended where it should have waited for the output of a call")
    return exchange
