"""The sglang engine: sends token ids to an SGLang server's native ``/generate``."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.core.generation import Job, Settings
from slipring.engines.constraints.answer_constraint import Constraint
from slipring.engines.remote.http_client import BadStatus, HttpFailure, spliced
from slipring.engines.remote.upstream import startup_errors, tenant_salt
from slipring.engines.tokens.model_files import ModelInfo, read_tokenizer
from slipring.engines.tokens.server_constraints import is_newer
from slipring.engines.tokens.token_answer import Piece
from slipring.engines.tokens.token_server import (
    Fault,
    Reader,
    Request,
    Served,
    TokenServer,
    failure,
    reason_of,
)
from slipring.errors import ServerError, StartupError
from slipring.prompts.rendering import Rendered
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.responses import Logprob, TopLogprob

_MODEL_INFO = ("/model_info", "/get_model_info")
"""The newer name, and that of older servers."""
_SERVER_INFO = ("/server_info", "/get_server_info")
_CONSTRAINT_FIELDS = {"schema": "json_schema", "grammar": "ebnf", "tag": "structural_tag"}
_FIRST_WITH_TAGS = (0, 5, 12)
"""The first version with xgrammar 0.2."""


class SglangEngine(TokenServer):
    """An SGLang server and its model."""

    name = "sglang"
    maker = "an SGLang server"
    spared = 6

    async def find_vocabulary(self) -> tuple[Vocabulary, ModelInfo]:
        path = self.options.tokenizer
        if not path:
            path = await self._server_tokenizer()
            if not path or not await asyncio.to_thread(Path(path).is_dir):
                where = f"the server's is {path}, which is not here" if path else "the server names none"
                raise StartupError(f"--engine sglang: name the model's tokenizer with tokenizer= ({where})")
        return await asyncio.to_thread(read_tokenizer, self.name, path)

    async def choose_model(self, listed: Any) -> Served:
        served = await super().choose_model(listed)
        if self.options.context:
            return served
        # A cache smaller than the model's context limits it as well. The server gives the longest prompt.
        longest = await self._longest_prompt() or served.context
        return served._replace(context=min(served.context, longest + self.spared))

    def _sampling(self, settings: Settings) -> dict[str, Any]:
        fields = self.sampling.fields(settings, penalty_name="repetition_penalty", unlimited_top_k=-1)
        return fields if settings.seed is None else {**fields, "sampling_seed": settings.seed}

    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        settings = job.settings
        # SGLang refuses a prompt and answer that together fill the context.
        most = max(self.served.context - sent.total - 1, 1)
        sampling: dict[str, Any] = {
            "max_new_tokens": min(limit, most),
            "stop_token_ids": sorted(self.renderer.stop_ids()),
            "skip_special_tokens": False,
            **self._sampling(settings),
        }
        if constraint is not None:
            sampling[_CONSTRAINT_FIELDS[constraint.kind]] = constraint.text
        # The extra key separates tenants in the prefix cache.
        body: dict[str, Any] = {
            "stream": True,
            "sampling_params": sampling,
            "extra_key": tenant_salt(job.tenant),
        }
        if settings.logprobs and job.generate:
            body |= {"return_logprob": True, "top_logprobs_num": settings.top_logprobs}
        pieces = spliced(b'{"input_ids":[', sent.json_pieces(), b"]," + wire.encode(body)[1:])
        headers = self._upstream.affinity_headers(job)
        return Request("/generate", pieces, headers, partial(_Reader, self))

    async def takes_tags(self) -> bool:
        info = await self._server_info()
        is_xgrammar = info.get("grammar_backend") in (None, "xgrammar")
        return is_xgrammar and is_newer(info.get("version"), _FIRST_WITH_TAGS)

    async def _longest_prompt(self) -> int:
        """The tokens of the longest prompt that the server takes; 0 if it does not say."""
        try:
            return int((await self._server_info()).get("max_req_input_len") or 0)
        except (ValueError, TypeError):
            return 0

    async def _server_info(self) -> dict[str, Any]:
        """What the server tells about itself; empty if it does not."""
        for path in _SERVER_INFO:
            try:
                info = await self.query(path)
            except (HttpFailure, ValueError):
                continue  # a gateway in front of the server may not know the path
            if isinstance(info, dict) and info:
                return info
        return {}

    async def _server_tokenizer(self) -> str:
        """Where the server has loaded its tokenizer from; empty if it does not say."""
        for path in _MODEL_INFO:
            with startup_errors(self.name, self.options.url, self.maker):
                try:
                    info = await self.query(path)
                except BadStatus:
                    continue
                if found := str(info.get("tokenizer_path") or info.get("model_path") or ""):
                    return found
        return ""


_Likely = tuple[float | None, int, str | None]
"""Logprob, id, and the text if it was requested."""


class _Reason(Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str = ""
    status_code: int | None = None


class _Meta(Struct):
    completion_tokens: int
    cached_tokens: int | None = None
    finish_reason: _Reason | None = None
    output_token_logprobs: list[_Likely] = []
    output_top_logprobs: list[list[_Likely] | None] = []


class _Chunk(Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: Fault | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _Reader(Reader):
    """Parses a stream whose chunks hold all ids so far, or only new ones, depending on the server's flags."""

    def __init__(self, engine: SglangEngine) -> None:
        self._engine = engine
        self._seen = 0

    def read(self, payload: bytes) -> Piece:
        chunk = _chunk.decode(payload)
        if chunk.error is not None:
            # Errors within a stream are refused requests; older versions give no code.
            raise failure(chunk.error, 400 if chunk.error.code is None else None)
        meta, sent = chunk.meta_info, chunk.output_ids
        if meta is None:
            raise ServerError("The engine's answer cannot be read.")
        reason = meta.finish_reason
        if reason is not None and reason.type == "abort":
            raise failure(Fault(reason.message), reason.status_code)
        if sent is None:
            raise ServerError("The engine does not return token ids: SGLang 0.5 or newer is needed.")
        # Fewer than the total: only new ids.
        ids = sent if len(sent) < meta.completion_tokens else sent[self._seen :]
        self._seen += len(ids)
        if self._seen < meta.completion_tokens:
            # Up to 0.5.9, servers that send only new ids may leave out some.
            raise ServerError("The engine has lost tokens of its answer.")
        piece = Piece(ids, cached_tokens=meta.cached_tokens)
        if meta.output_token_logprobs and ids:
            piece.logprobs = self._logprobs(meta, len(ids))
        if reason is not None:
            piece.reason = reason_of(reason.type)
            piece.stop_id = reason.matched if isinstance(reason.matched, int) else None
        return piece

    def _logprobs(self, meta: _Meta, count: int) -> list[Logprob]:
        # The new ones come last, after any that are sent again.
        chosen = meta.output_token_logprobs[-count:]
        likely = meta.output_top_logprobs[-count:] or [None] * count
        if not len(chosen) == len(likely) == count:
            raise ServerError("The engine's answer cannot be read.")
        found = []
        for one, others in zip(chosen, likely, strict=True):
            this = self._named(one)
            found.append(Logprob(this.token, this.logprob, this.bytes, list(map(self._named, others or []))))
        return found

    def _named(self, likely: _Likely) -> TopLogprob:
        logprob, id, _ = likely
        return self._engine.top_logprob(id, logprob if logprob is not None else 0.0)
