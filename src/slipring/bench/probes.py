"""What an endpoint can do, found out by trying: its model, its modes, whether it tells times and digests.

Each mode is tried with a turn or two. What is refused there is not supported, and the reason is kept;
answers that are wrong are left for the measurement to find. This warms the server up as well.
"""

import aiohttp
import msgspec
from msgspec import Struct

from slipring.bench import digests
from slipring.bench.exchange import PAUSE, TIMING, Exchange, Fields, Lost, Refused
from slipring.bench.modes import KEEP_REASONING, Chain, Context, Mode
from slipring.bench.transports import Access, Transport
from slipring.bench.workloads.plan import message
from slipring.bench.workloads.tools import CODING_TOOLS

_OK = 200
_LANE = "probe"
_CALL_TOKENS = 256
"""Enough for a whole call, where answers are bounded."""


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class Unmeasurable(Exception):
    """The endpoint cannot be measured at all. The text is one line."""


class Findings(Struct, kw_only=True):
    """What the endpoint can do."""

    modes: list[Mode]
    skipped: dict[str, str]
    """By mode: why it cannot be measured."""
    gives_digests: bool = False
    keeps_reasoning: bool = True
    """Whether it can be asked for reasoning that can be sent back to it."""


async def first_model(url: str, access: Access) -> str:
    """The model to ask where nobody has named one."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=access.timeout_s)) as http,
            http.get(f"{url.rstrip('/')}/models", headers=access.headers()) as answer,
        ):
            reason = f"answered {answer.status}"
            if answer.status == _OK:
                reason = f"gave no list of models but {answer.content_type}"
                models = msgspec.json.decode(await answer.read(), type=_Models).data
                if models:
                    return models[0].id
                reason = "named none"
    except (aiohttp.ClientError, OSError) as error:
        raise Unmeasurable(access.tell(f"cannot reach {url}: {' '.join(str(error).split())}")) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise Unmeasurable(access.tell(f"{url}/models {reason}: name a model with --model"))


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
            exchange = await _try(access, head, mode, findings)
        except (Refused, Lost) as error:
            findings.skipped[mode.name] = access.tell(str(error))
            continue
        except TimeoutError:
            findings.skipped[mode.name] = "no answer in time"
            continue
        findings.modes.append(mode)
        findings.gives_digests |= digests.found_in(exchange.answer) is not None
    return findings


async def _try(access: Access, head: Fields, mode: Mode, findings: Findings) -> Exchange:
    """A few turns in a mode; the last of them. Whoever refuses to give reasoning is not asked again."""
    if mode.sends_history and findings.keeps_reasoning:
        try:
            return await _turns(access, {**head, **KEEP_REASONING}, mode)
        except Refused:
            exchange = await _turns(access, head, mode)  # or it is refused for something else
            findings.keeps_reasoning = False
            return exchange
    return await _turns(access, head, mode)


async def _turns(access: Access, head: Fields, mode: Mode) -> Exchange:
    """Two turns, and what makes a rollout one."""
    lane = _LANE if mode.has_lanes else None
    context = Chain() if mode.is_rollout else mode.context()
    async with mode.open(access) as transport:
        for text in ("Say a word.", "Say another."):
            exchange = await transport.turn(context.request(head, [message(text)]), lane)
            if exchange.response is None:
                raise Lost("the answer has no terminal event")
            if lane is not None and exchange.events[0].get("stream_id") != lane:
                raise Refused("the answer to a stream_id names none")
            context.learn(exchange)
        if any(event.get("type") == TIMING for event in exchange.events):
            access.timed.add(type(transport))
        return await _try_rollout(transport, mode.context(), head) if mode.is_rollout else exchange


async def _try_rollout(transport: Transport, context: Context, head: Fields) -> Exchange:
    """A response that is made to call a tool, and should stay open."""
    head = {**head, "tools": CODING_TOOLS[:1], "tool_choice": "required"}
    if "max_output_tokens" in head:
        head["max_output_tokens"] = _CALL_TOKENS
    exchange = await transport.turn(context.request(head, [message("Read a file.")]))
    if exchange.events[-1]["type"] != PAUSE:
        raise Refused("the response ended where it should have waited for the output of a call")
    return exchange
