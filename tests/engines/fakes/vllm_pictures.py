"""A fake vLLM whose model sees, as of vLLM 0.32, read from its source.

As there, ``/tokenize`` refuses messages with pictures if the model does not see; ``/inference/v1/generate``,
which is forbidden without ``--enable-scale-out``, replaces each placeholder by the tokens of its picture,
takes a picture without data if it knows its ``uuid``, and refuses it otherwise; the chat endpoint announces
its answer in a chunk without ids.
"""

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import web

from tests.engines.fakes.server import Refuse, Stop
from tests.engines.fakes.tokens import END, TOKENIZER, Chunk, decoded, tokenizer_directory
from tests.engines.fakes.vllm import FakeVllm

PICTURE = "<file_sep>"
PICTURE_TOKENS = 9
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}" + PICTURE + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_directories: list[TemporaryDirectory[str]] = []


@cache
def seeing_directory() -> str:
    """The vocabulary of the fakes, with a template that takes pictures."""
    directory = TemporaryDirectory(prefix="slipring-seeing-")
    _directories.append(directory)
    shutil.copytree(tokenizer_directory(), directory.name, dirs_exist_ok=True)
    config = {"chat_template": TEMPLATE, "eos_token": {"content": "<|im_end|>"}}
    Path(directory.name, "tokenizer_config.json").write_text(json.dumps(config))
    return directory.name


def chat_tokens(messages: list[dict[str, Any]]) -> int:
    """What the texts of messages count: their tokens, and four for the marks of each message."""
    contents = (each["content"] or "" for each in messages)
    texts = (
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        for content in contents
    )
    return sum(4 + len(TOKENIZER.encode(text)) for text in texts)


class FakeSeeingVllm(FakeVllm):
    """vLLM with a model that sees."""

    version = "0.32.0"
    sees = True
    scale_out = True
    """`--enable-scale-out`"""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[str] = set()
        """The names of pictures that it has."""
        self.uploaded: list[int] = []
        """For each request with pictures: how many came with their data."""

    def options(self, **options: Any) -> Any:
        return super().options(**{"tokenizer": seeing_directory(), **options})

    def routes(self) -> list[web.RouteDef]:
        return [
            *super().routes(),
            web.post("/v1/chat/completions", self._generate),
            web.post("/inference/v1/generate", self._by_ids),
        ]

    async def _tokenize(self, request: web.Request) -> web.Response:
        if "messages" not in await request.json() or not self.sees:
            return await super()._tokenize(request)
        if (refused := self.verdict_on(await request.text())) is not None:
            return self.refuse(refused)
        return web.json_response({"count": 20, "max_model_len": 8192, "tokens": []})

    async def _by_ids(self, request: web.Request) -> web.StreamResponse:
        if not self.scale_out:
            return self.refuse(Refuse(403, "the scale-out endpoints are not enabled"))
        body = await request.json()
        if "token_ids" not in body:
            return web.json_response({"detail": "token_ids: field required"}, status=422)
        parts = body["content_parts"]
        self.uploaded.append(sum(part["url"] is not None for part in parts))
        for index, part in enumerate(parts):
            if part["url"] is None and part["uuid"] not in self.known:
                return self.refuse(
                    Refuse(400, f"Cache miss for image at index {index} but data is not provided.")
                )
            self.known.add(part["uuid"])
        assert body["token_ids"].count(TOKENIZER.control(PICTURE)) == len(parts)
        return await self._generate(request)

    def prompt_of(self, body: dict[str, Any]) -> list[int] | None:
        if "messages" in body:
            texts = (f"<|im_start|>{each['role']}\n<|im_end|>\n" for each in body["messages"])
            return [id for text in texts for id in TOKENIZER.encode(text)]
        return body["token_ids"] if "token_ids" in body else super().prompt_of(body)

    def fault_of(self, prompt: list[int]) -> str | None:
        return None

    def events(self, body: dict[str, Any], chunk: Chunk, ids: list[int], stop: Stop) -> list[Any]:
        if "prompt" in body:
            return super().events(body, chunk, ids, stop)
        choice: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(body, chunk)}
        choice |= {"finish_reason": chunk.reason, "stop_reason": END if chunk.reason == "stop" else None}
        events: list[Any] = []
        if "messages" in body:
            pictures = json.dumps(body["messages"]).count('"image_url": {')
            count = chat_tokens(body["messages"]) + PICTURE_TOKENS * pictures
            choice["delta"] = {"content": chunk.text}
            if ids == chunk.ids:
                events.append({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        else:
            count = len(body["token_ids"]) + (PICTURE_TOKENS - 1) * len(body["content_parts"])
            if body["output_mode"] == "text":
                choice["text"] = chunk.text
        choice["token_ids"] = chunk.ids
        events.append({"choices": [choice]})
        if chunk.reason is not None:
            usage = {"prompt_tokens": count, "completion_tokens": len(ids), "total_tokens": count + len(ids)}
            usage["prompt_tokens_details"] = {"cached_tokens": stop.cached_tokens}  # type: ignore[assignment]
            events += [{"choices": [], "usage": usage}, "[DONE]"]
        return events

    def _logprobs(self, body: dict[str, Any], chunk: Chunk) -> dict[str, Any] | None:
        if "messages" in body:
            if not body.get("logprobs"):
                return None
            named = [{"token": decoded([id]), "logprob": -1.0} for id in chunk.ids]
        elif body["sampling_params"].get("logprobs") is None:
            return None
        else:
            named = [{"token_id": id, "logprob": -1.0} for id in chunk.ids]
        return {"content": [{**each, "top_logprobs": [each]} for each in named]}
