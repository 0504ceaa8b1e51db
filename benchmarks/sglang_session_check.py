"""Compares turns in streaming sessions of SGLang with whole requests, and looks for what sessions leave.

    python benchmarks/sglang_session_check.py --url http://127.0.0.1:30000 --tokenizer DIRECTORY [--agents 8]

SGLang is started before, with ``--enable-streaming-session``, ``--enable-metrics`` and a
``--max-running-requests`` above the number of agents: each open session takes the place of a running request,
and with as many sessions as places SGLang answers nobody. SGLang heeds seeds only with
``--enable-deterministic-inference``; without it the settings with seeds are left out. With
``--dtype float32`` all answers are expected to be equal; in less precision whole requests differ among
themselves, too, which is the control. ``--tokenizer`` names the directory of the served model, with its
vocabulary and generation settings. The parts:

- **Tokens**: chains in sessions, without slipring: limits of 1 to 60 tokens, answers that a stop token ends,
  and warmups, which must emit nothing. The ids, the reason of the end and the log probabilities of each turn
  must be those of a whole request with the same context that uses no cache. That request is sent twice, which
  is the control.
- **Settings**: chains in sessions whose turns have a format, a grammar, a structural tag, a seed, log
  probabilities, a bias or penalties of their own, or none, in any order; compared in the same way. A turn
  with a grammar that cannot be compiled must be refused, and the session go on as if it had not been sent.
- **Chains**: the same conversations over slipring: forks, warmups, older responses, some turns with a format;
  twice without sessions, which is the control, and once with.
- **Leaving**: clients that leave in the first or second turn of a session, before or after the first token,
  or close it while it runs; some go on in it, and must get the answer to the context of its finished turns.
  Others leave slipring amid an answer.

The first two parts run with one chain alone, and then with all at once. Alone, no turn may differ where the
whole requests agree. At once, SGLang computes turns in other batches. A turn that differs there is taken
again when all chains have ended, in a new session with the same context, and must not differ then; and turns
may differ only where whole requests differ among themselves, too, and about as often. With SGLang 0.5.23 on a
CPU, whole requests with penalties or seeds get other answers beside others than alone, even in 32-bit
arithmetic; so up to six turns with these may differ in any case. After each part, SGLang's gauges must say
that it has no session, no token in use or held, and no request that runs or waits.

The program ends with 1 if it has found a fault. ``--record NAME`` keeps the figures under that name, beside
those of other runs, in ``benchmarks/results/session_check_sglang.json``.
"""

import argparse
import asyncio
import json
import random
import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).with_name("peers")))

from common import RESULTS
from plugin_client import STOPS
from servers import Server, slipring
from session_check import _SCHEMA, _WORDS, Agent, _numbers, compared, conversation, with_stops
from session_faults import _AGAIN, _COMPARED, _CONTROL, _most

from slipring.commands.bench.client.transports import SseParser
from slipring.commands.bench.subject import machine

PARTS = ("tokens", "settings", "chains", "leaving")
RECORD = RESULTS / "session_check_sglang.json"
_TOLERANCE = 2e-3
"""Equal log probabilities differ by less: 32-bit arithmetic rounds them otherwise in other batches."""
_SIZES = (1, 3, 40, 300, 900)
"""New tokens of a turn."""
_ROOM = 6_000
"""A chain ends when its context is longer, so that any model has room for it."""
_SETTLED_S = 90.0
"""How long the gauges may take to say that nothing is in use: an idle SGLang updates them every 30 s."""
_GAUGES = (
    *("num_streaming_sessions", "streaming_session_held_tokens", "num_running_reqs", "num_queue_reqs"),
    "kv_used_tokens",
)
"""Zero when nothing is in use."""
_SWA_GAUGE = "swa_used_tokens"
"""The same, for layers with sliding windows."""
_MOST_AGAIN = 20
"""So many turns that differ are taken again."""
_OURS, _THEIRS = "turns that differ:", "whole requests that differ:"
_UNLIKE = "differing where the control agrees"
_IN_SESSION = "in an open session"
_TAG = {
    "type": "structural_tag",
    "format": {
        **{"type": "tag", "begin": "<call>", "end": "</call>"},
        "content": {"type": "json_schema", "json_schema": _SCHEMA},
    },
}
SETTINGS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "none": lambda dice: {},
    "schema": lambda dice: {"json_schema": json.dumps(_SCHEMA)},
    "grammar": lambda dice: {"ebnf": 'root ::= "left" | "right" " " root'},
    "repeated": lambda dice: {"ebnf": 'root ::= "one two three " root'},
    "tag": lambda dice: {"structural_tag": json.dumps(_TAG)},
    "seed": lambda dice: {"sampling_seed": dice.randrange(10_000), "temperature": 1.0},
    "seeded schema": lambda dice: {
        **{"sampling_seed": dice.randrange(10_000), "temperature": 1.0},
        "json_schema": json.dumps(_SCHEMA),
    },
    "logprobs": lambda dice: {"logprobs": dice.choice((0, 3))},
    "bias": lambda dice: {"logit_bias": {str(dice.choice(_WORDS)): 100.0}},
    "penalties": lambda dice: {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "not a grammar": lambda dice: {"ebnf": "root ::= ("},
}
_SEEDED = ("seed", "seeded schema")
_UNSTEADY = (*_SEEDED, "penalties")
"""Settings with which whole requests, too, are answered otherwise beside others than alone."""
_REFUSED = "not a grammar"
_BEGINNINGS = {
    **{"schema": ("{",), "seeded schema": ("{",), "tag": ("<call>{",)},
    **{"grammar": ("left", "right"), "repeated": ("onetwothree",)},
}
"""How texts under these settings begin, without blanks."""
_WAYS = ("leave", "leave at once", "close", "leave, go on", "constraint, leave")


@dataclass
class Answer:
    """An answer of SGLang, or why there is none."""

    refused: str = ""
    """Also for an answer whose client has left."""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: str = ""
    prompt_tokens: int = 0
    chosen: list[float] = field(default_factory=list)
    """Log probabilities of the ids, if they were asked for."""
    top: list[list[float]] = field(default_factory=list)
    """Those of the likeliest tokens at each place."""


class Sglang:
    """An SGLang server, asked with token ids."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url.rstrip("/")

    async def information(self) -> dict[str, Any]:
        """The server's settings and version."""
        async with self._http.get(f"{self._url}/server_info") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def open(self) -> str:
        """Open a session; its id."""
        session = secrets.token_hex(8)
        asked = {"session_id": session, "streaming": True, "timeout": 600, "capacity_of_str_len": 0}
        async with self._http.post(f"{self._url}/open_session", json=asked) as answer:
            if answer.status != 200:
                raise RuntimeError(f"no session: {answer.status} {await answer.text()}")
        return session

    async def close(self, session: str) -> None:
        async with self._http.post(f"{self._url}/close_session", json={"session_id": session}) as answer:
            await answer.read()

    async def forget(self) -> None:
        """Empty the prefix cache."""
        async with self._http.post(f"{self._url}/flush_cache") as answer:
            await answer.read()

    async def ask(
        self,
        ids: list[int],
        limit: int,
        settings: dict[str, Any],
        session: str = "",
        leave_after: int | None = None,
    ) -> Answer:
        """The answer to new ids in a session, or without one to a whole context that uses no cache.
        ``leave_after``: so many events are read, and then the client leaves."""
        sampling = {"max_new_tokens": limit, "temperature": 0, "stop_token_ids": list(STOPS)} | settings
        body: dict[str, Any] = {"input_ids": ids, "stream": True, "sampling_params": sampling}
        if (logprobs := sampling.pop("logprobs", None)) is not None:
            body |= {"return_logprob": True, "top_logprobs_num": logprobs}
        body |= {"session_params": {"id": session}} if session else {"extra_key": secrets.token_hex(8)}
        last: dict[str, Any] = {"error": "no event"}
        events, parser = 0, SseParser()
        async with self._http.post(f"{self._url}/generate", json=body) as answer:
            if answer.status != 200:
                return Answer(f"{answer.status} {await answer.text()}")
            async for chunk in answer.content.iter_any():
                for data in parser.feed(chunk):
                    last = json.loads(data)
                    events += 1
                if leave_after is not None and events > leave_after:
                    return Answer("the client has left")
        return _answer(last)

    async def state(self) -> dict[str, float]:
        """What SGLang's gauges say of sessions, requests and tokens in use. Raises ``RuntimeError`` if one
        is missing."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            text = await answer.text()
        found = {
            name: sum(map(float, values))
            for name in (*_GAUGES, _SWA_GAUGE)
            if (values := re.findall(rf"^sglang:{name}{{[^}}]*}} (\S+)$", text, re.M))
        }
        if missing := set(_GAUGES) - set(found):
            raise RuntimeError(f"SGLang does not tell {', '.join(sorted(missing))}: see --enable-metrics")
        return found

    async def settled(self) -> dict[str, float]:
        """The state when nothing is in use any more, or after ``_SETTLED_S``."""
        deadline = time.monotonic() + _SETTLED_S
        while True:
            state = await self.state()
            if not any(state.values()) or time.monotonic() > deadline:
                return state
            await asyncio.sleep(1.0)


def _answer(last: dict[str, Any]) -> Answer:
    """What the last event of an answer says, which has all of its ids and log probabilities."""
    if "error" in last:
        return Answer(str(last["error"]))
    told = last["meta_info"]
    if (told["finish_reason"] or {}).get("type") in (None, "abort"):
        return Answer(str(told["finish_reason"]))
    return Answer(
        ids=last["output_ids"],
        text=last["text"],
        reason=told["finish_reason"]["type"],
        prompt_tokens=told["prompt_tokens"],
        chosen=[each[0] for each in told.get("output_token_logprobs") or ()],
        top=[
            sorted((each[0] for each in tokens or ()), reverse=True)
            for tokens in told.get("output_top_logprobs") or ()
        ],
    )


def alike(one: Answer, other: Answer) -> bool:
    """Whether ids, the reason of the end and, but for rounding, log probabilities are the same."""
    if (one.refused, one.ids, one.reason) != (other.refused, other.ids, other.reason):
        return False
    rows, others = [one.chosen, *one.top], [other.chosen, *other.top]
    return [len(row) for row in rows] == [len(row) for row in others] and all(
        abs(left - right) < _TOLERANCE
        for row, its in zip(rows, others, strict=True)
        for left, right in zip(row, its, strict=True)
    )


@dataclass(frozen=True)
class Turn:
    """A turn in a session."""

    kind: str
    held: list[int]
    """The context that the session has before it."""
    new: list[int]
    limit: int
    settings: dict[str, Any]


class Found:
    """What chains have found about turns."""

    def __init__(self) -> None:
        self.counts = Counter({"turns": 0, "equal": 0, _AGAIN: 0, _UNLIKE: 0, _IN_SESSION: 0})
        self.differing: list[Turn] = []
        """Those that were not answered as a whole request is."""
        self._differences: list[str] = []
        self._wrong: list[str] = []

    def wrong(self, *what: object) -> None:
        """Note a fault that no control excuses."""
        self._wrong.append(_short(what))

    def is_answered(self, answer: Answer, context: list[int]) -> bool:
        """Whether a turn has an answer to the whole context. If not, it is a fault."""
        if answer.refused:
            self.wrong("refused", answer.refused)
        elif answer.prompt_tokens != len(context):
            self.wrong("another context", answer.prompt_tokens, len(context))
        else:
            return True
        return False

    async def compare(self, sglang: Sglang, turn: Turn, answer: Answer) -> None:
        """Compare the answer to a turn with that to a whole request, which is sent twice."""
        context = [*turn.held, *turn.new]
        whole = [await sglang.ask(context, turn.limit, turn.settings) for _ in range(2)]
        is_equal, is_control_equal = alike(answer, whole[0]), alike(*whole)
        is_unlike = is_control_equal and not is_equal
        self.counts.update({"turns": 1, "equal": is_equal, _AGAIN: is_control_equal, _UNLIKE: is_unlike})
        self.counts.update({_IN_SESSION: bool(turn.held), "stopped": answer.reason == "stop"})
        self.counts.update({"tokens": len(answer.ids), "log probabilities": len(answer.chosen)})
        if not is_control_equal:
            self.counts.update({f"{_THEIRS} {turn.kind}": 1})
        if not is_equal:
            self.counts.update({f"{_OURS} {turn.kind}": 1})
            self.differing.append(turn)
            ids = [each.ids[:8] for each in (answer, *whole)]
            self._differences.append(
                _short((turn.kind, len(turn.held), answer.reason, whole[0].reason, *ids))
            )

    def told(self) -> dict[str, Any]:
        """The counts and the first of the differences and faults."""
        found = {"differing": self._differences[:3], "wrong": self._wrong[:5], "wrongs": len(self._wrong)}
        return {**self.counts, **found}


def _short(what: object) -> str:
    return str(what)[:200]


Chain = Callable[[Sglang, Found, random.Random], Coroutine[Any, Any, None]]


async def check(sglang: Sglang, chain: Chain, agents: int, seed: str) -> dict[str, Any]:
    """So many chains at once, and what they leave behind."""
    found = Found()
    await asyncio.gather(*(chain(sglang, found, random.Random(f"{seed} {each}")) for each in range(agents)))
    return await outcome(sglang, found)


async def outcome(sglang: Sglang, found: Found) -> dict[str, Any]:
    """What chains have found that have ended, and what they leave behind. Turns that differ are taken again,
    one after the other."""
    again = Found()
    for turn in found.differing[:_MOST_AGAIN]:
        session = await sglang.open()
        if turn.held:
            await sglang.ask(turn.held, 0, {}, session)
        answer = await sglang.ask(turn.new, turn.limit, turn.settings, session)
        await again.compare(sglang, turn, answer)
        await sglang.close(session)
    counts = {name: again.counts[name] for name in ("turns", "equal", _AGAIN, _UNLIKE)}
    return {**found.told(), "taken again alone": counts, "after": await sglang.settled()}


def tokens_chain(turns: int) -> Chain:
    """A chain of plain turns with log probabilities, and warmups: the second turn, and others by chance."""

    async def chain(sglang: Sglang, found: Found, dice: random.Random) -> None:
        session = await sglang.open()
        context: list[int] = []
        for number in range(turns):
            limit = 0 if number == 1 or dice.random() < 0.15 else dice.choice((1, 2, 10, 60))
            settings: dict[str, Any] = {"logprobs": 2} if limit else {}
            turn = Turn("tokens", list(context), dice.choices(_WORDS, k=dice.choice(_SIZES)), limit, settings)
            context += turn.new
            answer = await sglang.ask(turn.new, limit, settings, session)
            if not found.is_answered(answer, context):
                break
            if not limit:
                found.counts.update({"warmups": 1})
                if answer.ids:
                    found.wrong("a warmup has emitted", answer.ids)
                    break
                continue
            if not len(answer.ids) == len(answer.chosen) == len(answer.top):
                found.wrong("log probabilities", len(answer.ids), len(answer.chosen), len(answer.top))
            await found.compare(sglang, turn, answer)
            context += answer.ids
            if len(context) > _ROOM:
                break
        await sglang.close(session)

    return chain


def settings_chain(kinds: list[str], turns: int) -> Chain:
    """A chain whose turns have settings of these kinds: all of them in any order, then all again."""

    async def chain(sglang: Sglang, found: Found, dice: random.Random) -> None:
        session = await sglang.open()
        context: list[int] = []
        is_after_refusal = False
        order: list[str] = []
        for _ in range(turns):
            order = order or dice.sample(kinds, len(kinds))
            kind = order.pop()
            settings, limit = SETTINGS[kind](dice), dice.choice((2, 10, 40))
            new = dice.choices(_WORDS, k=dice.choice(_SIZES[:-1]))
            answer = await sglang.ask(new, limit, settings, session)
            if kind == _REFUSED:
                found.counts.update(refused=1)
                if not answer.refused:
                    found.wrong("not refused", answer.ids)
                    break
                is_after_refusal = True
                continue
            turn = Turn(kind, list(context), new, limit, settings)
            context += new
            if not found.is_answered(answer, context):
                break
            await found.compare(sglang, turn, answer)
            found.counts.update({f"with {kind}": 1, "after a refusal": is_after_refusal})
            is_after_refusal = False
            if not _is_begun(kind, answer.text):
                found.wrong("not constrained", kind, answer.text)
            context += answer.ids
            if len(context) > _ROOM:
                break
        await sglang.close(session)

    return chain


def _is_begun(kind: str, text: str) -> bool:
    """Whether a text, perhaps cut by its limit, begins as it must with these settings."""
    written = "".join(text.split())
    return any(
        written.startswith(beginning) or beginning.startswith(written)
        for beginning in _BEGINNINGS.get(kind, ("",))
    )


async def leaving_chain(sglang: Sglang, found: Found, dice: random.Random) -> None:
    """A session for each of ``_WAYS``, one after the other, left so in its first or second turn."""
    for way in dice.sample(_WAYS, len(_WAYS)):
        session = await sglang.open()
        context: list[int] = []
        new = dice.choices(_WORDS, k=dice.choice((5, 500, 3_000)))
        if dice.random() < 0.7:
            answer = await sglang.ask(new, 20, {}, session)
            found.is_answered(answer, new)
            context = [*new, *answer.ids]
            new = dice.choices(_WORDS, k=dice.choice((50, 2_500)))
        await _leave(sglang, session, new, way, dice)
        found.counts.update({way: 1})
        if way == "leave, go on":
            await _go_on(sglang, found, session, context, dice)
        if way != "close":
            await sglang.close(session)


async def _leave(sglang: Sglang, session: str, new: list[int], way: str, dice: random.Random) -> None:
    """Begin a turn, and leave it in one of ``_WAYS``."""
    settings = {**(SETTINGS["schema"](dice) if way == "constraint, leave" else {}), "stop_token_ids": []}
    if way not in ("leave at once", "close"):
        await sglang.ask(new, 60, settings, session, leave_after=dice.choice((0, 1, 5)))
        return
    asking = asyncio.ensure_future(sglang.ask(new, 60, settings, session))
    await asyncio.sleep(dice.random() * 0.3)
    if way == "close":
        await sglang.close(session)
    else:
        asking.cancel()
    await asyncio.wait([asking])


async def _go_on(sglang: Sglang, found: Found, session: str, context: list[int], dice: random.Random) -> None:
    """Take a turn after one that was left, which must continue the context that was finished before."""
    new = dice.choices(_WORDS, k=20)
    answer = await sglang.ask(new, 10, {}, session)
    for _ in range(100):
        if "active request" not in answer.refused:
            break
        await asyncio.sleep(0.1)
        answer = await sglang.ask(new, 10, {}, session)
    if found.is_answered(answer, [*context, *new]):
        await found.compare(sglang, Turn("went on", context, new, 10, {}), answer)


async def check_leaving(sglang: Sglang, server: Server, agents: int, seed: int) -> dict[str, Any]:
    """Half of the clients leave sessions of their own, the others slipring."""
    left = 0

    async def at_slipring(number: int) -> None:
        nonlocal left
        dice = random.Random(f"{seed} leaving slipring {number}")
        for _ in _WAYS:
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(f"{server.url}/responses", max_msg_size=0) as ws,
            ):
                agent, after = Agent(ws, server.model), None
                for _ in range(2):
                    after = (await agent.ask(_numbers(dice), after, 60))["id"]
                asking = asyncio.ensure_future(agent.ask(_numbers(dice), after, 60))
                await asyncio.wait([asking], timeout=dice.random() * 0.5)
                asking.cancel()
                await asyncio.wait([asking])
                left += 1

    direct, found = max(1, agents // 2), Found()
    await asyncio.gather(
        *(
            leaving_chain(sglang, found, random.Random(f"{seed} leaving {number}"))
            for number in range(direct)
        ),
        *map(at_slipring, range(agents - direct)),
    )
    return {**await outcome(sglang, found), "slipring": left}


async def check_chains(
    sglang: Sglang, servers: dict[str, Server], kinds: list[str], agents: int, turns: int, seed: int
) -> dict[str, Any]:
    """All conversations at once: twice without sessions, then with."""
    told: dict[str, list[list[Any]]] = {}
    most: dict[str, float] = {}
    for name, server in {"off": servers["off"], "off again": servers["off"], "on": servers["on"]}.items():

        async def talk(number: int, server: Server = server) -> list[Any]:
            headers = {"OpenAI-Beta": "slipring_zero_retention=v1"} if number % 2 else {}
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.ws_connect(f"{server.url}/responses", max_msg_size=0) as ws,
            ):
                return await conversation(Agent(ws, server.model), number, kinds, turns, seed)

        await sglang.forget()
        talking = asyncio.gather(*map(talk, range(agents)))
        most[name] = await _most_sessions(sglang, talking)
        told[name] = await talking
    return {
        _CONTROL: _with_short(compared(told["off"], told["off again"])),
        _COMPARED: _with_short(compared(told["off"], told["on"])),
        "kinds": Counter(answer[0] for chain in told["on"] for answer in chain),
        "most sessions at once": most,
        "health": {name: await _health(server) for name, server in servers.items()},
        "after": await sglang.settled(),
    }


async def _most_sessions(sglang: Sglang, until: "asyncio.Future[Any]") -> float:
    """How many sessions are open at once until something has ended."""
    most = 0.0
    while not until.done():
        most = max(most, (await sglang.state())["num_streaming_sessions"])
        await asyncio.wait([until], timeout=0.5)
    return most


def _with_short(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "examples": [_short(each) for each in found["examples"]]}


async def _health(server: Server) -> str:
    """Whether slipring uses sessions, in its own words."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{server.url.removesuffix('/v1')}/health") as answer,
    ):
        return str((await answer.json())["engines"][0].get("sessions"))


async def _over(sglang_url: str, directory: Path, sessions: str, running: ExitStack) -> Server:
    """Start slipring in front of SGLang, until ``running`` ends."""
    engine = f"sglang:URL,tokenizer={directory},sessions={sessions}"
    server = running.enter_context(slipring(sglang_url, engine=engine))
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/models") as answer:
        server.model = (await answer.json())["data"][0]["id"]
    return server


def faults(run: dict[str, Any]) -> list[str]:
    """Each in a line; none if sessions were right and nothing was left behind."""
    found = []
    for part, told in run.items():
        if not isinstance(told, dict):
            continue
        state = told.get("after", told)
        found += [f"{part}: {name} is {state[name]}" for name in (*_GAUGES, _SWA_GAUGE) if state.get(name)]
        if "wrongs" in told:
            found += [f"{part}: {fault}" for fault in _faulty_turns(told, is_alone=part.endswith(" alone"))]
        if part.startswith(("tokens", "settings")) and not told[_IN_SESSION]:
            found.append(f"{part}: no turn went on in a session")
        if _COMPARED in told:
            found += [f"{part}: {fault}" for fault in _faulty_chains(told)]
    return found


def _faulty_turns(told: dict[str, Any], *, is_alone: bool) -> list[str]:
    found: list[str] = list(told["wrong"])
    if is_alone and told[_UNLIKE]:
        found.append(f"{told[_UNLIKE]} turns differ where whole requests agree: {told['differing']}")
    if again := told["taken again alone"][_UNLIKE]:
        found.append(f"{again} turns that differ do so again alone: {told['differing']}")
    steady = [kind for kind in (*SETTINGS, "tokens", "went on") if kind not in _UNSTEADY]
    for kinds, least in ((steady, 0), (_UNSTEADY, 1)):
        ours, theirs = (sum(told.get(f"{whose} {kind}", 0) for kind in kinds) for whose in (_OURS, _THEIRS))
        if ours > _most(max(theirs, least)):
            found.append(f"{ours} turns differ, {theirs or 'no'} whole requests: {told['differing']}")
    return found


def _faulty_chains(told: dict[str, Any]) -> list[str]:
    control, with_sessions = told[_CONTROL], told[_COMPARED]
    found = []
    if (ours := with_sessions["differing"]) > _most(theirs := control["differing"]):
        found.append(f"{ours} answers differ with sessions, {theirs or 'none'} without")
    if failed := control["failed"] + with_sessions["failed"]:
        found.append(f"{failed} answers have failed")
    if not told["most sessions at once"]["on"] or told["health"]["on"] != "used":
        found.append(f"sessions were not used: {told['health']['on']}")
    return found


def _kinds(given: argparse.Namespace, information: dict[str, Any]) -> list[str]:
    """The settings to check: those that were asked for, else all that this SGLang heeds."""
    if given.settings:
        return list(given.settings)
    is_seeded = information.get("enable_deterministic_inference")
    return [kind for kind in SETTINGS if is_seeded or kind not in _SEEDED]


def _checked(given: argparse.Namespace, information: dict[str, Any]) -> None:
    """End the program if the server cannot be checked with so many agents."""
    if not information.get("enable_streaming_session"):
        raise SystemExit("this SGLang has no sessions: start it with --enable-streaming-session")
    most = information.get("max_running_requests")
    if not most or given.agents >= most:
        raise SystemExit(f"SGLang needs --max-running-requests above {given.agents} (--agents), not {most}")


async def run(given: argparse.Namespace, report: Callable[[str, Any], None]) -> None:
    """All parts that were asked for."""
    timeout = aiohttp.ClientTimeout(total=given.most_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory()))
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            sglang = Sglang(http, given.url)
            information = await sglang.information()
            _checked(given, information)
            kinds, seed = _kinds(given, information), given.seed
            report("versions", {**machine.versions(), "sglang": information["version"]})
            report("settings of turns", kinds)
            report("before", await sglang.settled())
            chains = {
                "tokens": (tokens_chain, given.turns * 2),
                "settings": (lambda turns: settings_chain(kinds, turns), given.turns * 4),
            }
            for part, (chain, turns_alone) in chains.items():
                if part in given.parts:
                    alone = await check(sglang, chain(turns_alone), 1, f"{seed} {part} alone")
                    report(f"{part} alone", alone)
                    report(part, await check(sglang, chain(given.turns), given.agents, f"{seed} {part}"))
            if {"chains", "leaving"} & set(given.parts):
                with_stops(given.tokenizer, directory)
                servers = {name: await _over(given.url, directory, name, running) for name in ("off", "on")}
                if "chains" in given.parts:
                    told = await check_chains(sglang, servers, kinds, given.agents, given.turns, seed)
                    report("chains", told)
                if "leaving" in given.parts:
                    report("leaving", await check_leaving(sglang, servers["on"], given.agents, seed))
                running.close()  # slipring ends its sessions when it stops
            report("at the end", await sglang.settled())


def keep(name: str, found: dict[str, Any]) -> None:
    """Write a run to the record, in the place of an earlier one of its name."""
    runs = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    written = json.dumps({**runs, name: found}, indent=1, sort_keys=True, ensure_ascii=False)
    RECORD.write_text(written + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--url", required=True, help="that of SGLang")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the directory of the served model")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help="instead of all that SGLang heeds")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--most-s", type=float, default=600.0, help="how long a request may take")
    parser.add_argument("--record", metavar="NAME", help=f"keep the figures by this name in {RECORD.name}")
    given = parser.parse_args()
    options = f"--agents {given.agents} --turns {given.turns} --seed {given.seed}"
    command = f"python benchmarks/sglang_session_check.py --url … --tokenizer … {options}"
    record: dict[str, Any] = {
        "when": machine.now(),
        "machine": msgspec.to_builtins(machine.machine()),
        "command": f"{command} --parts {' '.join(given.parts)}",
    }

    def report(name: str, found: Any) -> None:
        record[name] = found
        print(f"{name}: {json.dumps(found)[:1500]}", flush=True)

    asyncio.run(run(given, report))
    found = faults(record)
    report("faults", found)
    if given.record:
        keep(given.record, record)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
