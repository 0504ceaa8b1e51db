"""A vLLM with slipring's plugin, asked with token ids: in sessions and by whole requests."""

import asyncio
import json
import re
import secrets
import time
from typing import Any

import aiohttp
from servers import Server

from slipring.commands.bench.client.transports import SseParser

PATH = "/slipring/sessions"
STOPS = range(0, 150_000, 25)
"""Ids that end an answer: one of 25 tokens, so that answers are short, and some empty."""
DECODED = 60
"""Tokens of an answer that is timed."""
KINDS = ("session", "whole", "whole, with ids")
"""How answers are timed. The first event of the last kind carries all ids of its prompt."""
KEPT_S = 600.0
"""When a session ends by itself that its client ends: a busy machine takes long from one turn to the next."""
_LEFT_S = 20.0
"""When one does whose turn had ended before its client left."""
Times = tuple[float, float]
"""In ms: from the request to the first token, and from the first to the last."""
_READ_AT_ONCE = 4
"""Requests at once for the likelihoods of a whole context, which take vLLM far longer than others."""
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


class Vllm:
    """A vLLM, asked with token ids."""

    def __init__(self, http: aiohttp.ClientSession, server: Server) -> None:
        self._http, self._url, self._model = http, server.url, server.model
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)

    async def turn(
        self,
        session: str,
        held: int,
        prompt: list[int],
        limit: int,
        *,
        idle_s: float = _LEFT_S,
        leave_after: int | None = None,
        settings: dict[str, Any] | None = None,
        logprobs: list[Any] | None = None,
    ) -> tuple[list[int], str]:
        """The ids of an answer, and why it ended. ``logprobs`` collects log probabilities."""
        sampling = {"max_tokens": limit, "temperature": 0.0, "stop_token_ids": list(STOPS)}
        body = {
            **{"session": session, "held": held, "prompt": prompt, "idle_s": idle_s, "model": self._model},
            "sampling": {**sampling, **(settings or {})},
        }
        ids: list[int] = []
        try:
            return ids, await self._answered(body, ids, leave_after, logprobs)
        except TimeoutError:
            return ids, "timed out"

    async def _answered(
        self, body: dict[str, Any], ids: list[int], leave_after: int | None, logprobs: list[Any] | None
    ) -> str:
        """Collect the ids of an answer; return why it ended."""
        async with self._http.post(self._url + PATH, json=body) as answer:
            if answer.status != 200:
                return f"refused: {answer.status} {(await answer.text())[:200]}"
            parser, reason = SseParser(), "no end"
            async for chunk in answer.content.iter_any():
                for data in parser.feed(chunk):
                    event = json.loads(data)
                    if "error" in event:
                        return f"error: {event['error']}"
                    for choice in event.get("choices", ()):
                        ids += choice["token_ids"]
                        reason = choice["finish_reason"] or reason
                        if logprobs is not None and choice["logprobs"]:
                            logprobs += _merged(choice["logprobs"])
                        if leave_after is not None and len(ids) >= leave_after:
                            answer.close()
                            return choice["finish_reason"] or "left"
        return reason

    async def end(self, session: str) -> None:
        async with self._http.post(f"{self._url}{PATH}/{session}/end") as answer:
            await answer.read()

    async def losses(self, ids: list[int]) -> list[float | None]:
        """For each of these ids but the first: how much less likely than the likeliest it is there."""
        body = {
            **{"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0.0},
            **{"prompt_logprobs": 1, "cache_salt": secrets.token_hex(8)},
        }
        async with self._reading, self._http.post(f"{self._url}/completions", json=body) as answer:
            listed = (await answer.json())["choices"][0]["prompt_logprobs"]
        found: list[float | None] = []
        for id, at in zip(ids, listed, strict=True):
            ranked = {} if at is None else {int(key): each["logprob"] for key, each in at.items()}
            found.append(max(ranked.values()) - ranked[id] if id in ranked else None)
        return found[1:]

    async def generate(
        self, prompt: list[int], limit: int, settings: dict[str, Any] | None = None
    ) -> tuple[list[int] | None, list[Any]]:
        """The same answer from a whole prompt, which the prefix cache may serve: its ids and log
        probabilities; None if it is refused."""
        body = {
            **{"model": self._model, "prompt": prompt, "max_tokens": limit, "temperature": 0.0},
            **{"stop_token_ids": list(STOPS), "return_token_ids": True, **(settings or {})},
        }
        async with self._http.post(f"{self._url}/completions", json=body) as answer:
            if answer.status == 400:
                return None, []
            if answer.status != 200:
                raise RuntimeError(f"a whole request was answered with {answer.status}: {settings}")
            choice = (await answer.json())["choices"][0]
            found = choice["logprobs"]
            return choice["token_ids"], [] if found is None else _merged(found)

    async def timed(self, kind: str, prompt: list[int], fields: dict[str, Any]) -> tuple[list[int], Times]:
        """An answer of 60 tokens: its ids, if the kind has them, and its times. Nothing but its length ends
        it. ``kind``: one of ``KINDS``."""
        sampling: dict[str, Any] = {"max_tokens": DECODED, "temperature": 0.0}
        body: dict[str, Any] = {"prompt": prompt, "model": self._model}
        if kind == "session":
            path, body = PATH, {**body, **fields, "sampling": {**sampling, "detokenize": False}}
        else:
            more = {"ignore_eos": True, "stream": True, "return_token_ids": kind == "whole, with ids"}
            path, body = "/completions", {**body, **sampling, **more}
        begun, first, ids, parser = time.perf_counter(), 0.0, list[int](), SseParser()
        async with self._http.post(self._url + path, json=body) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                for data in parser.feed(chunk):
                    for choice in json.loads(data).get("choices", ()):
                        ids += choice.get("token_ids") or ()
                        last = time.perf_counter()
                        first = first or last
        return ids, ((first - begun) * 1e3, (last - first) * 1e3)

    async def forget(self) -> bool:
        """Empty the prefix cache. Returns whether vLLM has done so: only with ``VLLM_SERVER_DEV_MODE=1``, and
        if nothing is in use."""
        address = f"{self._url.removesuffix('/v1')}/reset_prefix_cache"
        async with self._http.post(address, headers={"Connection": "close"}) as answer:
            return answer.status == 200 and (await answer.json())["success"] is True

    async def most_sessions(self) -> int:
        async with self._http.get(self._url + PATH) as answer:
            most: int = (await answer.json())["most_sessions"]
            return most

    async def most_session_tokens(self) -> int:
        async with self._http.get(self._url + PATH) as answer:
            most: int = (await answer.json())["most_tokens"]
            return most

    async def state(self) -> dict[str, float]:
        """What vLLM holds at the moment."""
        async with self._http.get(f"{self._url.removesuffix('/v1')}/metrics") as answer:
            text = await answer.text()
        found = {}
        for name in (*GAUGES, "num_preemptions_total"):
            values = re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.M)
            found[name] = sum(map(float, values))
        async with self._http.get(self._url + PATH) as answer:
            status = await answer.json()
        counted = {name: status[name] for name in ("sessions", "opened", "continued")}
        return {**found, **counted, "session_tokens": status["tokens"]}

    async def settled(self) -> dict[str, float]:
        """The state when nothing is in use any more, or after half a minute."""
        deadline = time.monotonic() + 30
        while True:
            state = await self.state()
            if not any(state[name] for name in (*GAUGES, "sessions")) or time.monotonic() > deadline:
                return state
            await asyncio.sleep(0.5)


def _merged(logprobs: dict[str, Any]) -> list[Any]:
    """Log probabilities as pairs of the chosen token's and the sorted others."""
    return [
        [round(chosen, 2), sorted(round(each, 2) for each in top.values())]
        for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    ]
