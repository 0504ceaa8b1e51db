"""The sglang engine: an SGLang server elsewhere, by token ids over its native ``/generate``."""

import urllib.error
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.core.generation import Job, Settings
from slipring.engines.constraints.constraint import Constraint
from slipring.engines.remote.body_splicing import spliced
from slipring.engines.remote.upstream import tenant_salt
from slipring.engines.tokens.renderers import Manner, read_tokenizer
from slipring.engines.tokens.token_answer import Piece, sampling
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

_TOLD_BY = ("/model_info", "/get_model_info")
"""The newer name, and that of older servers."""
_BOUNDED_BY = ("/server_info", "/get_server_info")


class SglangEngine(TokenServer):
    """A model in SGLang."""

    name = "sglang"
    maker = "an SGLang server"
    spared = 6

    def find_vocabulary(self) -> tuple[Vocabulary, Manner]:
        path = self.options.tokenizer
        if not path:
            path = next(filter(None, map(self._told_path, _TOLD_BY)), "")
            if not path or not Path(path).is_dir():
                where = f"the server's is {path}, which is not here" if path else "the server names none"
                raise StartupError(f"--engine sglang: name the model's tokenizer with tokenizer= ({where})")
        return read_tokenizer(self.name, path)

    def choose_model(self, told: Any) -> Served:
        served = super().choose_model(told)
        if self.options.context:
            return served
        # A cache that is smaller than the context bounds it, too. What is told is how long a prompt may be.
        prompt = next(filter(None, map(self._told_bound, _BOUNDED_BY)), served.context)
        return served._replace(context=min(served.context, prompt + self.spared))

    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        settings = job.settings
        # Prompt and answer have to be shorter than the context, not just as long.
        most = max(self.served.context - sent.total - 1, 1)
        sampling: dict[str, Any] = {
            "max_new_tokens": min(limit, most),
            "stop_token_ids": sorted(self.renderer.stop_ids()),
            "skip_special_tokens": False,
            **_sampling(settings),
        }
        if constraint is not None:
            sampling["ebnf" if constraint.kind == "grammar" else "json_schema"] = constraint.text
        # Caches of prefixes are kept apart by the extra key.
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

    def _told_bound(self, question: str) -> int:
        try:
            return int(self.ask(question).get("max_req_input_len") or 0)
        except (OSError, ValueError, AttributeError, TypeError):
            return 0  # a gateway before it may not know the path

    def _told_path(self, question: str) -> str:
        def read(told: dict[str, Any]) -> str:
            return str(told.get("tokenizer_path") or told.get("model_path") or "")

        try:
            return read(self.ask(question))
        except urllib.error.HTTPError:
            return ""
        except (OSError, ValueError, AttributeError):
            return self.ask_at_start(question, read)


def _sampling(settings: Settings) -> dict[str, Any]:
    asked = {**sampling(settings), "top_k": -1, "repetition_penalty": 1.0}
    if settings.seed is not None:
        asked["sampling_seed"] = settings.seed
    return asked


_Likely = tuple[float | None, int, str | None]
"""Logprob, id, and the text if it was asked for."""


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
    """Reads a stream whose chunks tell everything so far, or only what is new, as the server was started."""

    def __init__(self, engine: SglangEngine) -> None:
        self._engine = engine
        self._seen = 0

    def read(self, payload: bytes) -> Piece:
        chunk = _chunk.decode(payload)
        if chunk.error is not None:
            # Within a stream it tells only of requests that it refuses; older versions without a code.
            raise failure(chunk.error, 400 if chunk.error.code is None else None)
        meta, told = chunk.meta_info, chunk.output_ids
        if meta is None:
            raise ServerError("The engine's answer cannot be read.")
        reason = meta.finish_reason
        if reason is not None and reason.type == "abort":
            raise failure(Fault(reason.message), reason.status_code)
        if told is None:
            raise ServerError("The engine does not name its tokens: SGLang 0.5 or newer is needed.")
        # Fewer than there are in all: only what is new.
        ids = told if len(told) < meta.completion_tokens else told[self._seen :]
        self._seen += len(ids)
        if self._seen < meta.completion_tokens:
            # Up to 0.5.9, servers that tell only what is new may leave out some of it.
            raise ServerError("The engine has lost tokens of its answer.")
        piece = Piece(ids, cached_tokens=meta.cached_tokens)
        if meta.output_token_logprobs and ids:
            piece.logprobs = self._logprobs(meta, len(ids))
        if reason is not None:
            piece.reason = reason_of(reason.type)
            piece.stop_id = reason.matched if isinstance(reason.matched, int) else None
        return piece

    def _logprobs(self, meta: _Meta, count: int) -> list[Logprob]:
        # The last ones are the new ones, however many came again.
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
