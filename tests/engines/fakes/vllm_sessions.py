"""A fake vLLM that has loaded slipring's plugin: the plugin is real, and runs on a scripted engine.

As vLLM's does, the engine drops the last id that each turn has emitted.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiohttp import web

from slipring.engines.vllm_plugin import sessions as vllm_sessions
from slipring.engines.vllm_plugin.sessions import Limits, Sessions, Turn, TurnRefused
from tests.engines.fakes.server import Refuse, Stall, Step, Stop
from tests.engines.fakes.tokens import Chunk, actions, decoded
from tests.engines.fakes.vllm import FakeVllm


@dataclass
class Completion:
    """Some ids, as vLLM gives them out."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | None = None
    logprobs: list[dict[int, Any]] | None = None


@dataclass
class Output:
    outputs: list[Completion]
    num_cached_tokens: int


class _Input(NamedTuple):
    turn: Turn
    script: tuple[Step, ...]


class FakeVllmWithSessions(FakeVllm):
    most_sessions = 8
    most_tokens = 100_000
    whole = ""
    """Why turns with settings of their own are sent whole, if so."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: dict[str, list[int]] = {}
        """The open sessions, with the ids that the engine holds."""
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self.opened: list[str] = []
        limits = Limits(self.most_sessions, self.most_tokens, whole=self.whole)
        self.sessions = Sessions(limits, self._engine)

    def routes(self) -> list[web.RouteDef]:
        path = vllm_sessions.PATH
        return [
            *super().routes(),
            web.get(path, self._tell),
            web.post(path, self._run),
            web.post(path + "/{id}/end", self._end),
        ]

    async def _engine(self, first: Turn, inputs: AsyncIterator[_Input]) -> AsyncGenerator[Output, None]:
        self.opened.append(first.session)
        context = self.contexts[first.session] = []
        try:
            async for turn, script in inputs:
                context += turn.prompt
                self.prompts.append(list(context))
                assert self.fault_of(context) is None
                stop = next((step for step in script if isinstance(step, Stop)), Stop())
                emitted: list[int] = []
                for action in actions(script):
                    if isinstance(action, asyncio.Event):
                        await action.wait()
                    elif isinstance(action, Stall):
                        self.stalled.set()
                        await asyncio.sleep(3600)
                    elif isinstance(action, Chunk):
                        room = turn.sampling.max_tokens - len(emitted)
                        reason = action.reason or ("length" if len(action.ids) >= room else None)
                        emitted += action.ids[:room]
                        completion = Completion(action.ids[:room], action.text, reason)
                        if turn.sampling.logprobs is not None:
                            completion.logprobs = [_likely(id) for id in completion.token_ids]
                        yield Output([completion], stop.cached_tokens)
                        if reason is not None:
                            break
                    else:
                        raise RuntimeError("the engine has failed")
                context += emitted[:-1]
        finally:
            del self.contexts[first.session]
            self.closed.put_nowait(first.session)

    async def _tell(self, request: web.Request) -> web.Response:
        return web.json_response(self.told())

    def told(self) -> dict[str, Any]:
        """What the plugin says about itself."""
        limits = self.sessions.limits
        return {
            "most_sessions": limits.sessions,
            "most_tokens": limits.tokens,
            "refused": limits.refused,
            "whole": limits.whole,
        }

    async def _run(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        script = self.next_script()
        self.requests.append(json.loads(raw))
        if isinstance(script[0], Refuse):
            return self.refuse(script[0])
        turn = vllm_sessions.decode_turn(raw)
        try:
            session = self.sessions.begin(turn, lambda turn: _Input(turn, script))
        except TurnRefused as refused:
            return self.refuse(Refuse(refused.status, str(refused)))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        events = vllm_sessions.answered(self.sessions, session, turn)
        try:
            async for event in events:
                await answer.write(event)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        finally:
            await events.aclose()
        return answer

    async def _end(self, request: web.Request) -> web.Response:
        return web.json_response({"ended": self.sessions.end(request.match_info["id"])})


class Likely(NamedTuple):
    logprob: float
    decoded_token: str


def _likely(id: int) -> dict[int, Likely]:
    """As the fake without sessions: the chosen token is the second best."""
    return {other: Likely(at, decoded([other])) for other, at in ((id, -1.0), (id + 1, -0.5))}


def session_of(request: dict[str, Any]) -> str | None:
    """The session of a request; None if it has sent a whole prompt."""
    return request.get("session")
