"""A fake vLLM: ``/v1/completions`` and ``/tokenize`` as of vLLM 0.28, read from its source.

As there, every chunk names its ids (``token_ids``) if that was asked for; the token that ends an answer is
among them, though its text is not; usage comes in a separate chunk; and ``/tokenize`` finds control tokens
in any text.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from slipring.engines.tokens.server_options import VllmOptions
from slipring.engines.tokens.vllm import VllmEngine
from tests.engines.fakes.server import Refuse, Stop
from tests.engines.fakes.tokens import CONTEXT, END, TEMPLATE, TOKENIZER, Chunk, FakeTokenServer, decoded

_CONTROL = re.compile("|".join(re.escape(token) for token in sorted(TOKENIZER.control_tokens())))


class FakeVllm(FakeTokenServer):
    """vLLM with SmolLM2's vocabulary."""

    maker = VllmEngine
    known_options = VllmOptions
    path = "/v1/completions"
    prompt_field = "prompt"

    names_ids = True
    """Versions before 0.10.2 do not."""
    tells_cached = True
    """`--enable-prompt-tokens-details`"""
    tells_template = True
    """`--enable-tokenizer-info-endpoint`"""
    root = "HuggingFaceTB/SmolLM2"
    """Where its model was loaded from."""
    metrics = ""
    tokenizes = True
    version = "0.28.0"
    has_adapter = False
    """Serves an adapter with the name poet too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenized: list[str] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self._models),
            web.post("/tokenize", self._tokenize),
            web.get("/version", self._version),
            web.get("/tokenizer_info", self._tokenizer_info),
            web.get("/metrics", self._metrics),
        ]

    def events(self, body: dict[str, Any], chunk: Chunk, ids: list[int], stop: Stop) -> list[Any]:
        choice: dict[str, Any] = {"index": 0, "text": chunk.text, "logprobs": None}
        choice |= {"finish_reason": chunk.reason, "stop_reason": END if chunk.reason == "stop" else None}
        if self.names_ids and body.get("return_token_ids"):
            choice["token_ids"] = chunk.ids
        if body.get("logprobs") is not None:
            choice["logprobs"] = _logprobs(chunk.ids, body["logprobs"], body["return_tokens_as_token_ids"])
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
        events: list[Any] = [{**head, "choices": [choice]}]
        if chunk.reason is not None:
            count = len(body["prompt"])
            usage: dict[str, Any] = {
                "prompt_tokens": count,
                "completion_tokens": len(ids),
                "total_tokens": count + len(ids),
            }
            if self.tells_cached:
                usage["prompt_tokens_details"] = {"cached_tokens": stop.cached_tokens}
            events += [{**head, "choices": [], "usage": usage}, "[DONE]"]
        return events

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model_name, "object": "model", "owned_by": "vllm", "root": self.root}
        adapter = {"id": "poet", "object": "model", "parent": self.model_name, "root": "/adapters/poet"}
        adapters = [{**adapter, "max_model_len": None}] if self.has_adapter else []
        listed = [{**card, "max_model_len": CONTEXT}, *adapters]
        return web.json_response({"object": "list", "data": listed})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" in body:
            return self.refuse(Refuse(400, "At most 0 image(s) may be provided in one prompt."))
        assert body["add_special_tokens"] is False
        if not self.tokenizes:
            return web.json_response({"error": {"message": "no tokenizer"}}, status=500)
        self.tokenized.append(body["prompt"])
        ids = tokens_of(body["prompt"])
        return web.json_response({"count": len(ids), "max_model_len": CONTEXT, "tokens": ids})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics)

    async def _tokenizer_info(self, request: web.Request) -> web.Response:
        if not self.tells_template:
            raise web.HTTPNotFound
        names = {str(TOKENIZER.control(name)): name for name in TOKENIZER.control_tokens()}
        info = {"tokenizer_class": "GPT2Tokenizer", "chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
        return web.json_response({**info, "added_tokens_decoder": names})


def tokens_of(text: str) -> list[int]:
    """Ids of a text in which control tokens are found wherever they are spelled."""
    ids: list[int] = []
    at = 0
    for found in _CONTROL.finditer(text):
        ids += [*TOKENIZER.encode(text[at : found.start()]), TOKENIZER.control(found.group())]
        at = found.end()
    return ids + TOKENIZER.encode(text[at:])


def _logprobs(ids: list[int], top: int, as_ids: bool) -> dict[str, Any]:
    """The chosen token is the second best: it comes first nevertheless, and one more than requested."""

    def name(id: int) -> str:
        return f"token_id:{id}" if as_ids else decoded([id])

    others = [{name(id): -1.0, name(id + 1): -0.5, name(id + 2): -2.0} for id in ids]
    return {
        "text_offset": [0] * len(ids),
        "tokens": [name(id) for id in ids],
        "token_logprobs": [-1.0] * len(ids),
        "top_logprobs": [dict(list(each.items())[: top + 1]) for each in others],
    }


@asynccontextmanager
async def fake_vllm() -> AsyncIterator[FakeVllm]:
    fake = FakeVllm()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.close()
