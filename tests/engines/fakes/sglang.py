"""A fake SGLang: the protocol of its native ``/generate``, read from the source of SGLang 0.5.

As there, every chunk holds all ids so far, or only the new ones with ``--incremental-streaming-output``;
the token that ends an answer is among them; refused requests and aborted answers are reported
within a stream whose status is 200.

A model's processor keeps the ids that it is sent beside pictures, or decodes and tokenizes them again, which
finds control tokens by their spelling; some take text only. Each picture is ten tokens.

A streaming session appends the ids of a request to those that it holds, and the ids of a complete answer to
both, the token that ends it included.
"""

import asyncio
import json
import re
from typing import Any, ClassVar, Literal

from aiohttp import web

from slipring.engines.tokens.sglang import SglangEngine
from tests.engines.fakes.server import Refuse, Stop
from tests.engines.fakes.tokens import (
    CONTEXT,
    END,
    TOKENIZER,
    Chunk,
    FakeTokenServer,
    decoded,
    tokenizer_directory,
)

_CONTROL = re.compile(f"({'|'.join(map(re.escape, sorted(TOKENIZER.control_tokens(), key=len)))})")


def _has_left(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _with_control_tokens(text: str) -> list[int]:
    """The ids of a text in which spellings of control tokens are control tokens."""
    ids: list[int] = []
    for place, piece in enumerate(_CONTROL.split(text)):
        ids += [TOKENIZER.control(piece)] if place % 2 else TOKENIZER.encode(piece)
    return ids


class FakeSglang(FakeTokenServer):
    """SGLang with SmolLM2's vocabulary."""

    maker = SglangEngine
    path = "/generate"
    prompt_field = "input_ids"

    incremental = False
    names_ids = True
    is_old = False
    """Versions before 0.5.6 know ``/get_model_info`` only."""
    tokenizer_path: str | None = None
    max_req_input_len: int | None = None
    """The longest prompt that it reports; None: a gateway in front of it does not know the path."""
    version, grammar_backend = "0.5.18", "xgrammar"
    has_sessions = False
    """`--enable-streaming-session`"""
    has_session_cache = False
    """`--enable-session-radix-cache`"""
    sees = False
    """Whether its model takes pictures."""
    reads_pictures_beside: Literal["ids", "ids as text", "text"] = "ids"
    """What its processor takes."""
    facts: ClassVar[dict[str, Any]] = {}
    """What else ``/server_info`` says."""
    max_running_requests: int | None = None
    gives_places_to_sessions = False
    """Whether each session that has had a turn takes the place of a running request."""
    max_total_num_tokens: int | None = None
    bos: int | None = None
    """The token that it strips from the beginning of what a session appends."""
    abort: dict[str, Any] | None = None
    """How the next answer ends, if it is aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, list[int]] = {}
        """The open sessions, with the ids that they hold."""
        self.opened: list[dict[str, Any]] = []
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self.may_open = asyncio.Event()
        """Opening a session waits for this; set from the start."""
        self.may_open.set()
        self._places = asyncio.Condition()
        self.running = self.waiting = 0

    def routes(self) -> list[web.RouteDef]:
        prefix = "/get_" if self.is_old else "/"
        routes = [
            web.get("/v1/models", self._models),
            web.get(f"{prefix}model_info", self._model_info),
            web.post("/open_session", self._open_session),
            web.post("/close_session", self._close_session),
            web.get("/v1/loads", self._loads),
        ]
        if self.max_req_input_len is not None or self.has_sessions or self.has_session_cache:
            routes.append(web.get(f"{prefix}server_info", self._server_info))
        return routes

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["sampling_params"] == {"max_new_tokens": 1}:  # the engine asks how it takes pictures
            if (refused := self.verdict_on(json.dumps(body["image_data"]))) is not None:
                return self.refuse(refused)
            if self.reads_pictures_beside == "text" and "text" not in body:
                return self.refuse(Refuse(400, "a text prompt is needed"))
            count = len(self._read_ids(body)) + 9
            meta = {"completion_tokens": 1, "prompt_tokens": count, "finish_reason": {"type": "length"}}
            event = json.dumps({"output_ids": [END], "meta_info": meta})
            return web.Response(text=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        if not self.gives_places_to_sessions:
            return await super()._generate(request)
        self.waiting += 1
        async with self._places:
            await self._places.wait_for(lambda: _has_left(request) or self._has_place)
        self.waiting -= 1
        if _has_left(request):
            return web.Response()
        self.running += 1
        try:
            return await super()._generate(request)
        finally:
            self.running -= 1

    @property
    def _has_place(self) -> bool:
        assert self.max_running_requests is not None
        return sum(map(bool, self.sessions.values())) + self.running < self.max_running_requests

    async def _loads(self, request: web.Request) -> web.Response:
        async with self._places:
            self._places.notify_all()  # some may have left
        load = {"num_running_reqs": self.running, "num_waiting_reqs": self.waiting}
        return web.json_response({"loads": [{**load, "total_prefill_uncached_tokens": len(self.requests)}]})

    def _read_ids(self, body: dict[str, Any]) -> list[int]:
        """The ids of a prompt as the model reads them."""
        if "text" in body:
            return _with_control_tokens(body["text"])
        ids: list[int] = body["input_ids"]
        if "image_data" in body and self.reads_pictures_beside == "ids as text":
            return _with_control_tokens(decoded(ids))
        return ids

    def prompt_of(self, body: dict[str, Any]) -> list[int] | None:
        ids = self._read_ids(body)
        if "session_params" not in body:
            return ids
        held = self.sessions.get(body["session_params"]["id"])
        if held and ids and ids[0] == self.bos:
            ids = ids[1:]
        return None if held is None else held + ids

    def refuse(self, refused: Refuse) -> web.Response:
        if refused.status != 400:
            return super().refuse(refused)
        fault = f'{{"message": "{refused.message}", "type": "invalid_request_error", "code": 400}}'
        return web.Response(
            text=f'data: {{"error": {fault}}}\n\ndata: [DONE]\n\n', content_type="text/event-stream"
        )

    def events(self, body: dict[str, Any], chunk: Chunk, ids: list[int], stop: Stop) -> list[Any]:
        new = len(chunk.ids)
        prompt = self.prompt_of(body)
        assert prompt is not None
        if chunk.reason and not self.abort and "session_params" in body:
            most = body["sampling_params"]["max_new_tokens"]
            self.sessions[body["session_params"]["id"]] = prompt + ids[:most]
        sent = chunk.ids if self.incremental else list(ids)
        reason: dict[str, Any] | None = None
        if chunk.reason == "stop":
            reason = {"type": "stop", "matched": END}
        elif chunk.reason == "length":
            reason = {"type": "length", "length": len(ids)}
        meta: dict[str, Any] = {
            "id": "1",
            "finish_reason": self.abort if chunk.reason and self.abort else reason,
            "prompt_tokens": len(prompt) + 9 * len(body.get("image_data", ())),
            "completion_tokens": len(ids),
            "cached_tokens": stop.cached_tokens,
        }
        if body.get("return_logprob"):
            top = body["top_logprobs_num"]
            meta["output_token_logprobs"] = [[-0.5, id, None] for id in ids]
            if top:
                likely = [[[-0.5 - at, id + at, None] for at in range(top)] for id in ids]
                meta["output_top_logprobs"] = likely
            if self.incremental:
                for name in ("output_token_logprobs", "output_top_logprobs"):
                    meta[name] = meta.get(name, [])[-new:]
        event = {"text": "", "meta_info": meta, **({"output_ids": sent} if self.names_ids else {})}
        return [event, "[DONE]"] if chunk.reason else [event]

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model_name, "object": "model", "owned_by": "sglang", "root": "smollm2"}
        return web.json_response({"object": "list", "data": [{**card, "max_model_len": CONTEXT}]})

    async def _model_info(self, request: web.Request) -> web.Response:
        path = tokenizer_directory() if self.tokenizer_path is None else self.tokenizer_path
        info = {"model_path": path, "tokenizer_path": path, "is_generation": True}
        info["has_image_understanding"] = self.sees
        return web.json_response(info)

    async def _server_info(self, request: web.Request) -> web.Response:
        info = {
            "version": self.version,
            "grammar_backend": self.grammar_backend,
            "enable_streaming_session": self.has_sessions,
            **self.facts,
            "enable_session_radix_cache": self.has_session_cache,
            "max_req_input_len": self.max_req_input_len,
            "max_total_num_tokens": self.max_total_num_tokens,
            "max_running_requests": self.max_running_requests,
        }
        return web.json_response({**info, "internal_states": []})

    async def _open_session(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.opened.append(asked)
        await self.may_open.wait()
        if not self.has_sessions or asked["session_id"] in self.sessions:
            return web.json_response({"error": {"message": "Streaming sessions are disabled."}}, status=400)
        assert asked["streaming"] is True
        self.sessions[asked["session_id"]] = []
        return web.json_response(asked["session_id"])

    async def _close_session(self, request: web.Request) -> web.Response:
        session_id = (await request.json())["session_id"]
        self.sessions.pop(session_id, None)
        async with self._places:
            self._places.notify_all()
        self.closed.put_nowait(session_id)
        return web.Response()
