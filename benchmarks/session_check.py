"""Compares turns in sessions of vLLM with the same turns without, and looks for what sessions leave behind.

    python benchmarks/session_check.py --vllm-url http://127.0.0.1:8001 --model DIRECTORY [--agents 64]

vLLM runs with slipring's plugin, and serves the model of `many_agents.py` in the directory. The parts:

- **Tokens**: chains at vLLM's plugin, without slipring: limits of 1 to 60 tokens, answers that a stop token
  ends, also as the first token, warmups, turns of one token. Each chain is then read by a single request,
  without a cache, and every token that was emitted must be the likeliest there, or as likely within the
  precision of the arithmetic. Some answers are asked for again as whole requests, once with the prefix cache
  and twice without, so that answers in sessions can be compared with as much as whole requests differ among
  themselves.
- **Settings**: chains at the plugin whose turns have constraints, seeds, log probabilities and biases of
  their own, or none, in any order, and some a grammar that cannot be compiled. Each turn must be answered as
  a whole request with the same prompt and settings is; that request is sent twice, which is the control.
- **Chains**: the same conversations over slipring: forks, warmups, older responses, some turns with a format
  or strict tools; twice without sessions, which is the control, and once with. In 32-bit arithmetic, all
  texts and counts must be equal.
- **Leaving**: clients that leave at any moment, and sessions that are ended while they run. When all have
  left, vLLM must have no request, no session and no KV in use.
- **Minutes**: both at once for ``--minutes``: chains whose tokens are checked, beside clients that leave.
- **Preemption**: sessions that open at once and whose answers do not fit the KV cache together, so that vLLM
  takes running ones off and computes them again. Their tokens are checked as above.
- **Servers**: the clients of two slipring servers, which stay connected: as many of each as there may be
  sessions. Those of one leave no room, and those of the other go on a minute later in sessions even so; then
  in turn, then both at once. Without the schedule of loops, so that only vLLM's plugin ends sessions.
- **Restart**: chains over slipring whose vLLM is ended and started again by ``--restart-command`` between two
  turns; half of the clients ask meanwhile. Every chain must go on with its whole history, and in sessions.
- **Decoding**: how long 60 tokens take, from the first to the last and from the request to the last, in a
  session and in a whole request in turn: one stream alone, one beside other sessions that wait, and several
  at once. With several, the first of these times misleads: while vLLM's API process reads whole prompts,
  tokens that the engine has emitted wait in it, and then come together.

The program ends with 1 if it has found a fault.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).with_name("peers")))

from loops import user_item
from plugin_client import DECODED, KEPT_S, KINDS, STOPS, Times, Vllm
from servers import Server, running_vllm, slipring_over
from session_faults import faults

from slipring.commands.bench.subject import machine

PARTS = ("tokens", "settings", "decoding", "chains", "leaving", "servers", "minutes", "preemption", "restart")
USUAL = PARTS[:5]
_WORDS = range(1_000, 140_000)
_TOLERANCE = 0.35
"""How much less likely than the likeliest a token may be, as the difference of logarithms."""
_ROUNDED = 0.015
"""Log probabilities that are equal differ by less when they are rounded."""
_KEPT_S = 65.0
"""A session that is not used for so long makes room for another slipring server's, and a server that was
refused one asks again."""
_RETRIES_S = 400.0
"""How long clients ask again while vLLM is started."""


async def check_tokens(vllm: Vllm, agents: int, turns: int, seed: int) -> dict[str, Any]:
    """Chains at the plugin, all at once."""
    found, wrong = await read_tokens(vllm, agents, turns, seed)
    return {**found, "wrong": wrong, "after": await vllm.settled()}


async def read_tokens(vllm: Vllm, agents: int, turns: int, seed: int) -> tuple[Counter[str], list[str]]:
    found: Counter[str] = Counter()
    wrong: list[str] = []

    async def chain(number: int) -> None:
        dice, session = random.Random(f"{seed} {number}"), secrets.token_hex(8)
        context: list[int] = []
        emitted_at: list[int] = []
        missing: list[int] = []
        prompts: list[tuple[list[int], int, list[int]]] = []
        for _ in range(turns):
            is_warmup = dice.random() < 0.15
            limit = 1 if is_warmup else dice.choice((1, 2, 10, 60))
            new = dice.choices(_WORDS, k=dice.choice((1, 3, 40, 300, 900)))
            held = len(context) - len(missing)
            context += new
            ids, reason = await vllm.turn(session, held, missing + new, limit, idle_s=KEPT_S)
            if reason.startswith("refused: 400"):
                context = context[: len(context) - len(new)]
                found.update({"no room": 1})
                break
            if reason not in ("stop", "length") or not ids or len(ids) > limit:
                wrong.append(f"{reason}: {len(ids)} of {limit} tokens")
                break
            is_empty = reason == "stop" and len(ids) == 1
            found.update(turns=1, stopped=reason == "stop", empty=is_empty, warmups=is_warmup)
            found.update({"in an open session": held > 0})
            if any(id in STOPS for id in ids[:-1]) or (reason == "stop") != (ids[-1] in STOPS):
                wrong.append(f"{reason} after {ids[-3:]}")
            if is_warmup:
                missing = []
                continue
            prompts.append((list(context), limit, ids))
            emitted_at += range(len(context), len(context) + len(ids))
            context += ids
            missing = ids[-1:]
        await vllm.end(session)
        found.update(await likely(vllm, context, emitted_at))
        for prompt, limit, ids in dice.sample(prompts, min(2, len(prompts))):
            found.update(await asked_again(vllm, prompt, limit, ids))

    await asyncio.gather(*map(chain, range(agents)))
    return found, wrong


async def asked_again(vllm: Vllm, prompt: list[int], limit: int, ids: list[int]) -> dict[str, int]:
    """Compare an answer in a session with whole requests, and these with each other."""
    cached, _ = await vllm.generate(prompt, limit)
    fresh, again = [
        (await vllm.generate(prompt, limit, {"cache_salt": secrets.token_hex(8)}))[0] for _ in range(2)
    ]
    return {
        "answers": 1,
        "session = cached": ids == cached,
        "session = fresh": ids == fresh,
        "cached = fresh": cached == fresh,
        "fresh = fresh again": fresh == again,
    }


async def likely(vllm: Vllm, context: list[int], emitted_at: list[int]) -> dict[str, int]:
    """How likely the tokens are that were emitted at these places of a context, when it is computed anew."""
    if not emitted_at:
        return {}
    losses = [0.0, *(await vllm.losses(context))]
    emitted = [losses[at] for at in emitted_at]
    return {
        "tokens": len(emitted),
        "unknown": emitted.count(None),
        "unlikely": sum(loss is not None and loss > _TOLERANCE for loss in emitted),
        "likeliest": emitted.count(0.0),
    }


_SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 22, 333]}, "color": {"enum": ["red", "green", "blue"]}},
    "required": ["n", "color"],
    "additionalProperties": False,
}
SETTINGS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "none": lambda dice: {},
    "schema": lambda dice: {"structured_outputs": {"json": _SCHEMA}},
    "grammar": lambda dice: {"structured_outputs": {"grammar": 'root ::= "left" | "right" " " root'}},
    # Tokens that repeat are drafted where vLLM drafts tokens, and a limit ends the turn amid them.
    "repeated": lambda dice: {"structured_outputs": {"grammar": 'root ::= "one two three " root'}},
    "seed": lambda dice: {"seed": dice.randrange(10_000), "temperature": 1.0},
    "seeded schema": lambda dice: {
        **{"seed": dice.randrange(10_000), "temperature": 1.0},
        "structured_outputs": {"json": _SCHEMA},
    },
    "logprobs": lambda dice: {"logprobs": dice.choice((0, 3))},
    "bias": lambda dice: {"logit_bias": {str(dice.choice(_WORDS)): 100.0}},
    "penalties": lambda dice: {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "not a grammar": lambda dice: {"structured_outputs": {"grammar": "root ::= ("}},
}


async def check_settings(vllm: Vllm, kinds: list[str], agents: int, turns: int, seed: int) -> dict[str, Any]:
    """Chains at the plugin, all at once, with settings of each turn, of these kinds."""
    found: Counter[str] = Counter()
    wrong: list[Any] = []

    async def chain(number: int) -> None:
        dice, session = random.Random(f"{seed} settings {number}"), secrets.token_hex(8)
        context: list[int] = []
        missing: list[int] = []
        held = 0
        for _ in range(turns):
            kind = dice.choice(kinds)
            settings, limit = SETTINGS[kind](dice), dice.choice((2, 10, 40))
            context += (new := dice.choices(_WORDS, k=dice.choice((1, 3, 40, 300))))
            told: list[Any] = []
            ids, reason = await vllm.turn(
                *(session, held, missing + new, limit), idle_s=KEPT_S, settings=settings, logprobs=told
            )
            (whole, whole_told), (again, again_told) = [
                await vllm.generate(list(context), limit, settings) for _ in range(2)
            ]
            if whole is None:
                found.update({"refused": 1, f"refused: {kind}": 1})
                if ids or reason in ("stop", "length"):
                    wrong.append([kind, reason, ids])
                session, held, missing = secrets.token_hex(8), 0, list(context)
                continue
            is_equal = ids == whole and alike(told, whole_told)
            found.update(
                {kind: 1, "turns": 1, "equal": is_equal, "logprobs": len(told), "stopped": reason == "stop"}
            )
            found.update({"whole = whole again": again == whole and alike(again_told, whole_told)})
            if not is_equal:
                wrong.append([kind, limit, reason, ids[:50], whole[:50], told[:3], whole_told[:3]])
            context += ids
            held, missing = len(context) - 1, ids[-1:]
        await vllm.end(session)

    await asyncio.gather(*map(chain, range(agents)))
    return {**found, "wrong": wrong[:10], "wrongs": len(wrong), "after": await vllm.settled()}


def alike(some: list[Any], others: list[Any]) -> bool:
    """Whether log probabilities that were rounded to hundredths are the same, but for that."""
    if len(some) != len(others):
        return False
    return all(
        len(top) == len(top_of_other)
        and all(
            abs(one - other) < _ROUNDED
            for one, other in zip([chosen, *top], [its, *top_of_other], strict=True)
        )
        for (chosen, top), (its, top_of_other) in zip(some, others, strict=True)
    )


Answer = dict[str, Any]


class Agent:
    """A client of slipring: one WebSocket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, model: str) -> None:
        self._ws, self._model = ws, model

    async def rest(self, seconds: float) -> None:
        """Ask nothing for a while; read, which answers pings."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ws.receive()

    async def ask(self, said: str, after: str | None, limit: int, **fields: Any) -> Answer:
        frame = {
            **{"type": "response.create", "model": self._model, "input": [user_item(said)], "store": False},
            **{"temperature": 0, "max_output_tokens": limit, "previous_response_id": after, **fields},
        }
        await self._ws.send_str(json.dumps(frame))
        while True:
            event = json.loads(await self._ws.receive_str())
            if event["type"] in ("response.completed", "response.incomplete"):
                response: Answer = event["response"]
                return response
            if event["type"] in ("response.failed", "error"):
                return {"id": None, "failed": event}


_FIELDS: dict[str, dict[str, Any]] = {
    "none": {},
    "schema": {
        "text": {"format": {"type": "json_schema", "name": "found", "schema": _SCHEMA, "strict": True}}
    },
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
}


async def conversation(agent: Agent, number: int, kinds: list[str], turns: int, seed: int) -> list[Any]:
    """A chain with forks, warmups and older responses, and settings of these kinds; what each answer was, and
    what it depends on."""
    choices = [{}, *(fields for name, fields in _FIELDS.items() if name in kinds)]
    dice = random.Random(f"{seed} conversation {number}")
    ids: list[str] = []
    told: list[Any] = []
    for turn in range(turns):
        kind = (
            dice.choice(("next", "next", "next", "next", "fork", "older", "warmup")) if turn > 1 else "next"
        )
        at = len(ids) - 1 if kind in ("next", "warmup") else dice.randrange(len(ids))
        text = " ".join(
            f"{dice.choice('abcdefgh')}{dice.randrange(10_000)}" for _ in range(dice.choice((3, 30, 150)))
        )
        fields: dict[str, Any] = {"stream_id": f"fork{turn}"} if kind == "fork" else {}
        if kind == "warmup":
            fields["generate"] = False
        else:
            fields |= dice.choice(choices)
        answer = await agent.ask(text, ids[at] if ids else None, dice.choice((16, 16, 40)), **fields)
        usage = answer.get("usage") or {}
        texts = [part["text"] for item in answer.get("output", ()) for part in item.get("content", ())]
        told.append(
            [kind, at, texts, usage.get("input_tokens"), usage.get("output_tokens"), answer.get("failed")]
        )
        if answer["id"] is None:
            break
        ids.append(answer["id"])
    return told


async def check_chains(
    vllm: Vllm, servers: dict[str, Server], kinds: list[str], agents: int, turns: int, seed: int
) -> dict[str, Any]:
    """All conversations at once: twice without sessions, then with."""
    told: dict[str, list[list[Any]]] = {}
    took: dict[str, float] = {}
    is_forgotten = True
    before: dict[str, float] = {}
    for name, server in {"off": servers["off"], "off again": servers["off"], "on": servers["on"]}.items():

        async def talk(number: int, server: Server = server) -> list[Any]:
            headers = {"OpenAI-Beta": "slipring_zero_retention=v1"} if number % 2 else {}
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.ws_connect(f"{server.url}/responses", max_msg_size=0) as ws,
            ):
                return await conversation(Agent(ws, server.model), number, kinds, turns, seed)

        is_forgotten = await vllm.forget() and is_forgotten
        before = await vllm.state()
        begun = time.monotonic()
        told[name] = await asyncio.gather(*map(talk, range(agents)))
        took[name] = round(time.monotonic() - begun, 1)
    kinds = [answer[0] for chain in told["on"] for answer in chain]
    after = await vllm.state()
    return {
        "control: twice without sessions": compared(told["off"], told["off again"]),
        "with sessions against without": compared(told["off"], told["on"]),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "sessions": {name: after[name] - before[name] for name in ("opened", "continued")},
        "seconds": took,
        "cache emptied before each": is_forgotten,
    }


def compared(some: list[list[Any]], others: list[list[Any]]) -> dict[str, Any]:
    """How many answers are equal. Those that continue different ones are counted apart."""
    equal = differing = after_difference = failed = 0
    examples: list[Any] = []
    for left, right in zip(some, others, strict=True):
        tainted: set[int] = set()
        for number, (one, other) in enumerate(zip(left, right, strict=False)):  # one may have failed
            failed += bool(one[5]) + bool(other[5])
            if number and one[1] in tainted:
                tainted.add(number)
                after_difference += 1
            elif one == other:
                equal += 1
            else:
                tainted.add(number)
                differing += 1
                examples.append([one, other])
    return {
        **{"equal": equal, "differing": differing, "after_a_difference": after_difference, "failed": failed},
        "examples": examples[:2],
    }


async def check_preemption(vllm: Vllm, agents: int, seed: int) -> dict[str, Any]:
    """Sessions whose prompts fit the share of sessions, and whose answers do not fit the cache: twice the
    share. Two turns each; a second turn for which sessions have no room is refused."""
    most = await vllm.most_session_tokens()
    size, limit = int(0.8 * most / agents), int(2.0 * most / agents)
    found: Counter[str] = Counter()
    wrong: list[str] = []
    before = await vllm.state()

    async def chain(number: int) -> None:
        dice, session = random.Random(f"{seed} preemption {number}"), secrets.token_hex(8)
        context = dice.choices(_WORDS, k=size)
        emitted_at: list[int] = []
        held, new = 0, list(context)
        for _ in range(2):
            settings: dict[str, Any] = {"stop_token_ids": []}
            ids, reason = await vllm.turn(session, held, new, limit, idle_s=KEPT_S, settings=settings)
            if reason.startswith(("refused: 400", "refused: 404")):
                # There is no room for more, or the session has ended because answers took too much.
                found.update(refused=1)
                break
            if len(ids) != limit:
                wrong.append(f"{reason}: {len(ids)} of {limit} tokens")
                break
            emitted_at += range(len(context), len(context) + len(ids))
            context += ids
            held, new = len(context) - 1, [ids[-1], *dice.choices(_WORDS, k=20)]
            context += new[1:]
            found.update(turns=1)
        await vllm.end(session)
        found.update(await likely(vllm, context, emitted_at))

    await asyncio.gather(*map(chain, range(agents)))
    after = await vllm.settled()
    preempted = after["num_preemptions_total"] - before["num_preemptions_total"]
    return {**found, "preemptions": preempted, "wrong": wrong, "after": after}


class Restart:
    """Clients before, during and after a restart of the engine. Every other client waits until turns are
    answered again; the others ask while the engine ends, is away and starts. Their responses are stored: a
    turn that fails ends a chain whose responses are not."""

    def __init__(self, server: Server, turns: int, seed: int) -> None:
        self._server, self._turns, self._seed = server, turns, seed
        self.found: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.arrived = asyncio.Semaphore(0)
        """Released by each client after half of its turns."""
        self.is_restarted = False
        self._answered = asyncio.Event()

    async def talk(self, number: int) -> None:
        dice, waits = random.Random(f"{self._seed} restart {number}"), bool(number % 2)
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{self._server.url}/responses", max_msg_size=0) as ws,
        ):
            agent, after, known = Agent(ws, self._server.model), None, 0
            for turn in range(self._turns):
                if turn == self._turns // 2:
                    self.arrived.release()
                    if waits:
                        await self._wait(ws)
                usage, after = await self._asked(agent, _numbers(dice), after, store=not waits)
                if usage["input_tokens"] <= known:
                    self.wrong.append(f"history was lost: {usage['input_tokens']} tokens after {known}")
                known = usage["input_tokens"] + usage["output_tokens"]
                if after is None:
                    return
                self.found.update(turns=1)
                if self.is_restarted:
                    self._answered.set()

    async def _wait(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        """Wait until turns are answered again; read meanwhile, which answers pings."""
        reading = asyncio.ensure_future(ws.receive())
        await self._answered.wait()
        reading.cancel()
        await asyncio.wait([reading])

    async def _asked(self, agent: Agent, said: str, after: str | None, *, store: bool) -> tuple[Any, Any]:
        """Ask until there is an answer, as a client does with any server; its usage and its id."""
        begun = time.monotonic()
        while (answer := await agent.ask(said, after, 20, store=store))["id"] is None:
            self.found.update(failed=1)
            if time.monotonic() > begun + _RETRIES_S:
                self.wrong.append(f"no answer: {answer}")
                return {"input_tokens": 10**9, "output_tokens": 0}, None
            await asyncio.sleep(1.0)
        return answer["usage"], answer["id"]


async def check_restart(
    vllm: Vllm, server: Server, agents: int, turns: int, command: str, seed: int
) -> dict[str, Any]:
    """Half of the turns before the engine is started again, half of them after it."""
    restart = Restart(server, turns, seed)
    before = await vllm.state()
    talking = asyncio.ensure_future(asyncio.gather(*map(restart.talk, range(agents))))
    for _ in range(agents):
        await restart.arrived.acquire()
    at_restart = await vllm.state()
    process = await asyncio.create_subprocess_shell(command)
    restart.found.update(restarts=await process.wait() == 0)
    restart.is_restarted = True
    await talking
    after = await vllm.state()
    return {
        **restart.found,
        "continued before": at_restart["continued"] - before["continued"],
        "continued after": after["continued"],
        "wrong": restart.wrong,
    }


class Clients:
    """Clients of one server that stay connected, with a chain each."""

    def __init__(self, agents: list[Agent], at_once: int, seed: int) -> None:
        self._agents = agents
        self._asking = asyncio.Semaphore(at_once)
        self._dice = random.Random(f"{seed} servers")
        self._latest: list[str | None] = [None] * len(agents)
        self.wrong: list[str] = []

    async def ask(self, turns: int) -> None:
        """So many further turns of each chain."""
        for _ in range(turns):
            await asyncio.gather(*map(self._ask, range(len(self._agents))))

    async def _ask(self, number: int) -> None:
        said = " ".join(str(self._dice.randrange(10_000)) for _ in range(10))
        async with self._asking:
            answer = await self._agents[number].ask(said, self._latest[number], 8)
        if answer["id"] is None:
            self.wrong.append(str(answer["failed"]))
        self._latest[number] = answer["id"]

    async def rest(self, seconds: float) -> None:
        await asyncio.gather(*(agent.rest(seconds) for agent in self._agents))


async def counted(vllm: Vllm, asking: Awaitable[Any]) -> dict[str, float]:
    """What vLLM counts of sessions while turns are taken, and how many are open then."""
    before = await vllm.state()
    await asking
    after = await vllm.state()
    found = {name: after[name] - before[name] for name in ("opened", "continued")}
    return {**found, "open": after["sessions"]}


async def check_servers(
    vllm: Vllm, servers: list[Server], at_once: int, turns: int, seed: int
) -> dict[str, Any]:
    """The clients of two servers, of each as many as there may be sessions."""
    count = await vllm.most_sessions()
    async with AsyncExitStack() as connected:
        http = await connected.enter_async_context(aiohttp.ClientSession())

        async def clients(server: Server) -> Clients:
            sockets = [
                await connected.enter_async_context(
                    http.ws_connect(f"{server.url}/responses", max_msg_size=0)
                )
                for _ in range(count)
            ]
            return Clients([Agent(ws, server.model) for ws in sockets], at_once, seed)

        first, second = [await clients(server) for server in servers]

        async def rest() -> None:
            await asyncio.gather(first.rest(_KEPT_S), second.rest(_KEPT_S))

        found = {"first": await counted(vllm, first.ask(turns))}
        found["second, at once"] = await counted(vllm, second.ask(2))
        await rest()
        found["second"] = await counted(vllm, second.ask(turns))
        found["first, at once"] = await counted(vllm, first.ask(2))
        await rest()
        found["first again"] = await counted(vllm, first.ask(turns))
        found["both"] = await counted(vllm, asyncio.gather(first.ask(turns), second.ask(turns)))
    return {**found, "clients of each": count, "wrong": first.wrong + second.wrong}


async def time_decoding(
    vllm: Vllm, at_once: int, waiting: int, rounds: int, context: int, seed: int
) -> dict[str, Any]:
    """Answers to the same contexts in sessions and by whole requests, in turn. So many streams at once,
    beside sessions that wait. Times are in ms, as medians and quartiles of all streams and rounds."""
    dice, names = random.Random(f"{seed} decoding"), [secrets.token_hex(8) for _ in range(waiting)]
    for name in names:
        await vllm.turn(name, 0, dice.choices(_WORDS, k=200), 1)
    found: dict[str, list[Times]] = {kind: [] for kind in KINDS}
    sessions = [secrets.token_hex(8) for _ in range(at_once)]
    contexts = [dice.choices(_WORDS, k=context) for _ in sessions]
    held, answers = 0, list[list[int]]()
    for number in range(rounds):
        # Each kind is as often the first of a round, which reads the new ids.
        for kind in (KINDS * 2)[number % len(KINDS) :][: len(KINDS)]:
            in_session = [context[held:] for context in contexts] if kind == "session" else contexts
            timed = await asyncio.gather(
                *(
                    vllm.timed(kind, prompt, {"session": session, "held": held})
                    for session, prompt in zip(sessions, in_session, strict=True)
                )
            )
            if number:
                found[kind] += [times for _, times in timed]
            if kind == "session":
                answers = [ids for ids, _ in timed]
        held = len(contexts[0]) + DECODED - 1
        contexts = [
            [*context, *ids, *dice.choices(_WORDS, k=200)]
            for context, ids in zip(contexts, answers, strict=True)
        ]
    for name in (*names, *sessions):
        await vllm.end(name)
    return {kind: _quartiles(times) for kind, times in found.items()}


def _quartiles(times: list[Times]) -> dict[str, list[float]]:
    first, decoding = zip(*times, strict=True)
    rates = [(DECODED - 1) / ms * 1e3 for ms in decoding]
    return {
        name: [round(each, 1) for each in statistics.quantiles(values, n=4)]
        for name, values in (
            *(("first_ms", first), ("decoding_ms", decoding), ("tokens_per_s", rates)),
            ("answer_ms", [sum(each) for each in times]),
        )
    }


async def check_leaving(vllm: Vllm, server: Server, agents: int, turns: int, seed: int) -> dict[str, Any]:
    """Half of the clients leave the plugin, the others slipring."""
    left = {"plugin": 0, "ended": 0, "slipring": 0}

    async def at_plugin(number: int) -> None:
        dice = random.Random(f"{seed} leaving {number}")
        for _ in range(turns):
            session, held = secrets.token_hex(8), 0
            prompt = dice.choices(_WORDS, k=dice.choice((5, 500, 3_000)))
            ids, reason = await vllm.turn(session, 0, prompt, 30)
            if reason in ("stop", "length"):
                held, prompt = len(prompt) + len(ids) - 1, [*ids[-1:], *dice.choices(_WORDS, k=50)]
                if dice.random() < 0.5:
                    _, reason = await vllm.turn(session, held, prompt, 60, leave_after=dice.choice((0, 1, 5)))
                    if reason == "left":  # else the turn had ended, and its session waits for the next
                        left["plugin"] += 1
                    else:
                        await vllm.end(session)
                else:
                    running = asyncio.ensure_future(vllm.turn(session, held, prompt, 60))
                    await asyncio.sleep(dice.random() * 0.1)
                    await vllm.end(session)
                    await running
                    left["ended"] += 1

    async def at_slipring(number: int) -> None:
        dice = random.Random(f"{seed} leaving slipring {number}")
        for _ in range(turns):
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(f"{server.url}/responses", max_msg_size=0) as ws,
            ):
                agent, after = Agent(ws, server.model), None
                for _ in range(2):
                    after = (await agent.ask(_numbers(dice), after, 60))["id"]
                asking = asyncio.ensure_future(agent.ask(_numbers(dice), after, 60))
                await asyncio.wait([asking], timeout=dice.random() * 0.3)
                asking.cancel()
                await asyncio.wait([asking])
                left["slipring"] += 1

    await asyncio.gather(
        *map(at_plugin, range(agents // 2)), *map(at_slipring, range(agents // 2)), return_exceptions=False
    )
    return left


async def check_minutes(
    vllm: Vllm, server: Server, agents: int, turns: int, seconds: float, seed: int
) -> dict[str, Any]:
    """Half of the agents as in ``check_tokens``, half of them as in ``check_leaving``, again and again."""
    found: Counter[str] = Counter()
    wrong: list[str] = []
    begun = time.monotonic()

    async def read() -> None:
        while time.monotonic() < begun + seconds:
            found.update(rounds=1)
            counted, faulty = await read_tokens(vllm, agents // 2, turns, seed + found["rounds"])
            found.update(counted)
            wrong.extend(faulty)

    async def leave() -> None:
        while time.monotonic() < begun + seconds:
            found.update({"rounds of leaving": 1})
            left = await check_leaving(vllm, server, agents // 2, 4, seed - found["rounds of leaving"])
            found.update({f"left: {name}": count for name, count in left.items()})

    await asyncio.gather(read(), leave())
    return {**found, "seconds": round(time.monotonic() - begun), "wrong": wrong}


def _numbers(dice: random.Random) -> str:
    return " ".join(str(dice.randrange(10_000)) for _ in range(100))


def with_stops(model: Path, directory: Path) -> Path:
    """A copy of a model's vocabulary whose answers end with any of ``STOPS``."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(model / name, directory / name)
    generation = json.loads((model / "generation_config.json").read_text())
    ends = generation["eos_token_id"]
    generation["eos_token_id"] = [*(ends if isinstance(ends, list) else [ends]), *STOPS]
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


async def check(given: argparse.Namespace, report: Callable[[str, Any], None]) -> None:
    engine = running_vllm(given.vllm_url, 0, given.model)
    if given.name:
        engine = dataclasses.replace(engine, model=given.name)
    timeout = aiohttp.ClientTimeout(total=given.most_s)
    with ExitStack() as running, tempfile.TemporaryDirectory() as directory:
        # vLLM closes connections that are idle for 5 seconds, perhaps while a request is on its way.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            vllm = Vllm(http, engine)
            report("before", await vllm.state())
            if "tokens" in given.parts:
                report("tokens alone", await check_tokens(vllm, 1, given.turns, given.seed + 1))
                report("tokens", await check_tokens(vllm, given.agents, given.turns, given.seed))
            if "settings" in given.parts:
                report(
                    "settings alone",
                    await check_settings(vllm, given.settings, 1, given.turns * 4, given.seed + 1),
                )
                report(
                    "settings",
                    await check_settings(vllm, given.settings, given.agents, given.turns, given.seed),
                )
            if "preemption" in given.parts:
                report("preemption", await check_preemption(vllm, given.agents, given.seed))
            decoded = ((1, 0), (1, given.waiting), (given.streams, 0)) if "decoding" in given.parts else ()
            for streams, waiting in decoded:
                times = await time_decoding(vllm, streams, waiting, 13, given.context, given.seed)
                report(f"decoding, {streams} at once, {waiting} waiting", times)
            ending = dataclasses.replace(engine, files=with_stops(given.model, Path(directory)))
            named = f",model={given.name}" if given.name else ""
            servers = {
                name: running.enter_context(slipring_over(ending, f"check-{name}", name, named))
                for name in ("off", "on")
            }
            both = [
                running.enter_context(
                    slipring_over(
                        ending, f"check-{name}", "on", f"{named},scheduling=false,max_sessions=4096"
                    )
                )
                for name in ("first", "second")
                if "servers" in given.parts
            ]
            parts: dict[str, Callable[[], Awaitable[Any]]] = {
                "chains": lambda: check_chains(
                    vllm, servers, given.settings, given.agents, given.turns, given.seed
                ),
                "leaving": lambda: check_leaving(vllm, servers["on"], given.agents, 4, given.seed),
                "servers": lambda: check_servers(vllm, both, given.agents, given.turns, given.seed),
                "minutes": lambda: check_minutes(
                    vllm, servers["on"], given.agents, given.turns, given.minutes * 60, given.seed
                ),
                "restart": lambda: check_restart(
                    vllm, servers["on"], given.agents, given.turns, given.restart_command, given.seed
                ),
            }
            for name, part in parts.items():
                if name in given.parts:
                    report(name, await part())
                    report(f"after {name}", await vllm.settled())
            running.close()  # slipring ends its sessions when it stops
            report("at the end", await vllm.settled())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--vllm-url", required=True)
    parser.add_argument("--model", type=Path, required=True, help="the directory with the model's vocabulary")
    parser.add_argument("--name", help="the name of a model or an adapter; without it, the first one")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=USUAL)
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="those that this vLLM takes"
    )
    parser.add_argument("--restart-command", default="", help="ends vLLM, and starts it at the same address")
    parser.add_argument("--waiting", type=int, default=30, help="sessions that wait while decoding is timed")
    parser.add_argument("--streams", type=int, default=16, help="streams at once while decoding is timed")
    parser.add_argument("--context", type=int, default=4_000, help="their tokens at the beginning")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long the part `minutes` lasts")
    parser.add_argument("--most-s", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record: dict[str, Any] = {"when": machine.now(), "agents": given.agents, "turns": given.turns}

    def report(name: str, found: Any) -> None:
        record[name] = found
        print(f"{name}: {json.dumps(found)[:1500]}", flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(record, indent=1) + "\n")

    asyncio.run(check(given, report))
    found = faults(record)
    report("faults", found)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
