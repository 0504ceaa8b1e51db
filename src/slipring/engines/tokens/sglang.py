"""The sglang engine: sends token ids to an SGLang server's native ``/generate``.

With streaming sessions, turns of a chain send their new ids only.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.base.errors import ApiError, InvalidRequest, ServerError
from slipring.base.surrogates import repaired
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Job, Settings
from slipring.engines.constraints.server_constraint import Constraint
from slipring.engines.constraints.supported_constraints import takes_tags
from slipring.engines.remote.http_client import spliced
from slipring.engines.remote.http_connection import BadStatus, HttpFailure, Unreadable
from slipring.engines.remote.replica_affinity import branch_keys, tenant_salt
from slipring.engines.remote.upstream_errors import startup_errors
from slipring.engines.scheduling.chain_ends import ChainEnds
from slipring.engines.scheduling.priorities_and_hints import urgency
from slipring.engines.tokens.job_exchange import JobExchange, Request
from slipring.engines.tokens.job_rendering import data_urls
from slipring.engines.tokens.model_files import ModelInfo, read_tokenizer, unnamed_tokenizer
from slipring.engines.tokens.pictured_requests import PicturedExchange, grey_square_url
from slipring.engines.tokens.server_options import TokenServerOptions, read_options
from slipring.engines.tokens.sessions import Addressed, Mismatch, SessionProtocol
from slipring.engines.tokens.token_answer import Fault, Piece, PieceParser, TokenAnswer, failure, reason_of
from slipring.engines.tokens.token_server import Offer, Served, TokenServer
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.tokenization.control_token_guard import ContextSpeller
from slipring.prompts.tokenization.token_budget import UNLIMITED, BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items.items import read_item
from slipring.protocol.responses import Logprob, TopLogprob

_MODEL_INFO = ("/model_info", "/get_model_info")
"""The newer name, and that of older servers."""
_SERVER_INFO = ("/server_info", "/get_server_info")
_LOOKS_AGAIN_S = 1.0
"""After this time the server is asked again whether it does anything."""
_CONSTRAINT_FIELDS = {"schema": "json_schema", "grammar": "ebnf", "tag": "structural_tag"}
_RESENT = "SGLang is sent the data of all pictures of a context again"
_RESENT_AS_TEXT = "SGLang tokenizes contexts with pictures itself: all of it is sent again as text"
_WORDS = "hello there hello there"


class SglangEngine(TokenServer):
    """An SGLang server and its model."""

    name = "sglang"
    maker = "an SGLang server"
    spared = 6

    @classmethod
    def from_options(cls, text: str) -> "SglangEngine":
        return cls(read_options(cls.name, TokenServerOptions, text))

    _speller: ContextSpeller | None = None
    """Writes contexts with pictures as text, unless the server keeps the ids beside pictures. Set by
    ``start`` if the model sees."""

    async def start(self) -> None:
        await super().start()
        if self.renderer.takes_pictures and not await self._keeps_ids(self.renderer):
            self._speller = ContextSpeller(self.renderer.vocabulary)
        info = await self._server_info()
        if info.get("enable_session_radix_cache") is True:
            self.chain_ends = ChainEnds(self._close_chain)

    async def find_vocabulary(self) -> tuple[Vocabulary, ModelInfo]:
        path = self.options.tokenizer
        if not path:
            path = await self._server_tokenizer()
            if not path or not await asyncio.to_thread(Path(path).is_dir):
                raise unnamed_tokenizer(self.name, self.options.url, path)
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

    async def sees(self) -> bool:
        for path in _MODEL_INFO:
            with suppress(HttpFailure):
                return (await self.query(path)).get("has_image_understanding") is True
        return False

    async def picture_way(self, renderer: Renderer) -> str:
        if await self._keeps_ids(renderer):
            return "beside ids, all of them in each turn"
        return "beside text, everything in each turn: the server tokenizes contexts with pictures itself"

    async def _keeps_ids(self, renderer: Renderer) -> bool:
        """Whether the server reads the ids that it is sent beside pictures. Several of its processors write
        them as text, in which they find control tokens by their spelling, and some refuse them. It is asked
        with a text in letters: one that is tokenized again has fewer tokens."""
        vocabulary, urls = renderer.vocabulary, [grey_square_url()]
        ids, image = self._ids_of_pictures(renderer, urls), {"image_data": urls}
        words = vocabulary.encode(_WORDS)
        letters = [id for letter in _WORDS for id in vocabulary.encode(letter)]
        counted = []
        for tail in (words, letters):
            asked = {"input_ids": [*ids, *tail], "sampling_params": {"max_new_tokens": 1}, "stream": True}
            request = Request("/generate", [wire.encode(asked | image)], {}, partial(_Parser, self))
            try:
                pieces = await self.ask_aside(request)
            except ApiError:
                return False
            counted.append(next((each.prompt_tokens for each in reversed(pieces) if each.prompt_tokens), 0))
        return counted[1] - counted[0] == len(letters) - len(words)

    def _ids_of_pictures(self, renderer: Renderer, urls: Sequence[str]) -> list[int]:
        """The prompt of a message with these pictures."""
        shown = [{"type": "input_image", "image_url": url} for url in urls]
        item = read_item(wire.encode({"type": "message", "role": "user", "content": shown}), "")
        encoder = BudgetedEncoder(renderer.vocabulary, UNLIMITED)
        return renderer.open(renderer.start(Head(), Settings(), [item], encoder)).ids()

    async def refuses_pictures(self, urls: Sequence[str]) -> bool:
        try:
            ids = self._ids_of_pictures(self.renderer, [grey_square_url()] * len(urls))
        except ApiError:  # the template takes no such message: nothing is known of the server
            return False
        asked: dict[str, Any] = {"sampling_params": {"max_new_tokens": 1}, "stream": True, "image_data": urls}
        asked |= {"input_ids": ids} if self._speller is None else {"text": self._speller.write(ids)}
        body = await asyncio.to_thread(wire.encode, asked)
        try:
            await self.ask_aside(Request("/generate", [body], {}, partial(_Parser, self)))
        except InvalidRequest:
            return True
        except ApiError:
            return False
        return False

    def resent(self, job: Job, sent: Rendered) -> str | None:
        if not sent.body.pictures or job.parent is None:
            return None
        return _RESENT if self._speller is None else _RESENT_AS_TEXT

    def exchange(
        self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None, answer: TokenAnswer
    ) -> JobExchange:
        if not sent.body.pictures:
            return super().exchange(job, sent, limit, constraint, answer)
        write = partial(self.write, job, sent, limit, constraint)
        in_thread = partial(self.tokenizing.run, job.tenant, is_local=True)
        return PicturedExchange(self.attempt, job, write, answer, in_thread, self.refuses_pictures)

    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        """Takes time in proportion to the context if that has pictures."""
        if self._speller is None or not sent.body.pictures:
            return self._written(job, sent, _as_ids(sent.json_pieces()), limit, constraint, {})
        text = wire.encode(self._speller.write(sent.ids()))
        return self._written(job, sent, [b'{"text":', text], limit, constraint, {})

    def write_in_session(
        self, job: Job, sent: Rendered, addressed: Addressed, limit: int, constraint: Constraint | None
    ) -> Request:
        session = {"session_params": {"id": addressed.id}}
        return self._written(job, sent, _as_ids(addressed.pieces), limit, constraint, session)

    def _written(
        self,
        job: Job,
        sent: Rendered,
        prompt: Sequence[bytes],
        limit: int,
        constraint: Constraint | None,
        session: dict[str, Any],
    ) -> Request:
        """``prompt``: the beginning of the body."""
        settings = job.settings
        # SGLang refuses a prompt and answer that together fill the context.
        most = max(self.served.context - sent.total - _spared_for_pictures(sent) - 1, 1)
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
            **session,
        }
        if self.chain_ends is not None and not session:
            # The server keeps the chain's part of its cache longest, until the chain ends.
            body["session_id"] = branch_keys(job)[0]
        if self.options.priorities:
            body["priority"] = urgency(job)  # the higher value goes first
        if settings.logprobs and job.generate:
            body |= {"return_logprob": True, "top_logprobs_num": settings.top_logprobs}
        if sent.body.pictures:
            digests = sent.digests()
            urls = data_urls(job, digests)
            body["image_data"] = [urls[digest] for digest in digests]
        pieces = [*prompt, b"," + wire.encode(body)[1:]]
        headers = self._upstream.affinity_headers(job)
        expected = sent.total if session else None
        return Request("/generate", pieces, headers, partial(_Parser, self, expected))

    async def offered_sessions(self) -> Offer:
        info = await self._server_info()
        if self.options.sessions == "auto" and (missing := _missing_sessions(info)):
            return missing
        running, tokens = _capacity(info)
        if running == 1:
            return Offer(refused="the server runs one request at once, and a session takes its place")
        # What sessions hold cannot be evicted by the server: half of its cache stays for all else. Each takes
        # the place of a running request.
        return Offer(None if running is None else running // 2, None if tokens is None else tokens // 2)

    def session_protocol(self) -> SessionProtocol:
        return SessionProtocol(
            "SGLang", self._open_session, self._close_session, keeps_last=True, is_stuck=self._is_stuck
        )

    async def _is_stuck(self) -> bool:
        """Whether requests wait while none runs, and nothing has happened a moment later."""
        before = await self._idle_loads()
        if before is None:
            return False
        await asyncio.sleep(_LOOKS_AGAIN_S)
        return before == await self._idle_loads()

    async def _idle_loads(self) -> list[Any] | None:
        """What the server says of requests that wait, if none runs; None otherwise."""
        try:
            loads = (await self.query("/v1/loads"))["loads"]
            running, waiting = (
                sum(load[f"num_{state}_reqs"] for load in loads) for state in ("running", "waiting")
            )
            read = [load["total_prefill_uncached_tokens"] for load in loads]
        except (LookupError, TypeError):
            return None  # another version
        return [waiting, read] if waiting and not running else None

    async def _open_session(self, session_id: str, route: str) -> None:
        # The capacity is a field of old, which must be there and has no effect.
        asked = {
            "session_id": session_id,
            "streaming": True,
            "timeout": self.options.session_idle_s,
            "capacity_of_str_len": 0,
        }
        await self._post("/open_session", wire.encode(asked), route)

    async def _close_session(self, session_id: str, route: str) -> None:
        await self._post("/close_session", wire.encode({"session_id": session_id}), route)

    async def _close_chain(self, key: str) -> None:
        await self._close_session(key, key)

    async def _post(self, path: str, body: bytes, route: str) -> None:
        """POST to the replica of a chain, whether or not JSON answers it."""
        try:
            headers = self._upstream.route_headers(route)
            await self._upstream.client.query(path, [body], headers=headers)
        except Unreadable:
            return

    async def cache_tokens(self) -> int | None:
        return _capacity(await self._server_info())[1]

    async def takes_tags(self) -> bool:
        info = await self._server_info()
        is_xgrammar = info.get("grammar_backend") in (None, "xgrammar")
        return is_xgrammar and takes_tags("sglang", info.get("version"))

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


def _missing_sessions(info: dict[str, Any]) -> Offer | None:
    """Why a server has no sessions that can be used; None if it has."""
    if info.get("enable_streaming_session") is not True:
        return Offer(refused="the server has none; start it with --enable-streaming-session")
    ranks, processes = info.get("dp_size"), info.get("tokenizer_worker_num")
    reasons = {
        # The server does not say which rank has a session.
        f"data parallelism ({ranks} ranks)": ranks not in (None, 1),
        f"several API processes ({processes})": processes not in (None, 1),
        f"speculative decoding ({info.get('speculative_algorithm')})": bool(
            info.get("speculative_algorithm")
        ),
        "KV transfer": info.get("disaggregation_mode") not in (None, "null"),
        "a model with state beside its KV cache": info.get("uses_mamba_radix_cache") is True,
    }
    found = [name for name, holds in reasons.items() if holds]
    if not found:
        return None
    return Offer(refused=f"they are not known to be right with {', '.join(found)}", is_fault=True)


def _capacity(info: dict[str, Any]) -> tuple[int | None, int | None]:
    """How many requests a server runs at once, and how many tokens its cache has; None where it does not
    say."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    running, tokens = (
        next(
            (value for value in (state.get(key), info.get(key)) if isinstance(value, int) and value > 0), None
        )
        for key in ("max_running_requests", "max_total_num_tokens")
    )
    return running, tokens


def _as_ids(pieces: Sequence[bytes]) -> list[bytes]:
    """The beginning of a body with ids."""
    return spliced(b'{"input_ids":[', pieces, b"]")


def _spared_for_pictures(sent: Rendered) -> int:
    """How many tokens are left free because pictures may take more than estimated: as many again."""
    if not sent.body.pictures:
        return 0
    return sum(picture.tokens for step in sent.body.steps() for picture in step.pictures)


_Likely = tuple[float | None, int, str | None]
"""Logprob, id, and the text if it was requested."""


class _Reason(Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str = ""
    status_code: int | None = None


class _Meta(Struct):
    completion_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: _Reason | None = None
    output_token_logprobs: list[_Likely] = []
    output_top_logprobs: list[list[_Likely] | None] = []


class _Chunk(Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: Fault | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _Parser(PieceParser):
    """Parses a stream whose chunks hold all ids so far, or only new ones, depending on the server's flags."""

    def __init__(self, engine: SglangEngine, prompt_tokens: int | None = None) -> None:
        """``prompt_tokens``: the length of the prompt that the server must have read, in a session."""
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        self._seen = 0

    def read(self, payload: bytes) -> Piece:
        try:
            chunk = _chunk.decode(payload)
        except msgspec.DecodeError:
            chunk = _chunk.decode(repaired(payload))
        if chunk.error is not None:
            # Errors within a stream are refused requests; older versions give no code.
            raise failure(chunk.error, 400 if chunk.error.code is None else None)
        meta, sent = chunk.meta_info, chunk.output_ids
        if meta is None:
            raise ServerError("The engine's answer cannot be read.")
        reason = meta.finish_reason
        if reason is not None and reason.type == "abort":
            raise failure(Fault(reason.message), reason.status_code)
        if self._prompt_tokens not in (None, meta.prompt_tokens):
            raise Mismatch("The engine has read another prompt than the one that it was sent.")
        if sent is None:
            raise ServerError("The engine does not return token ids: SGLang 0.5 or newer is needed.")
        # Fewer than the total: only new ids.
        ids = sent if len(sent) < meta.completion_tokens else sent[self._seen :]
        self._seen += len(ids)
        if self._seen < meta.completion_tokens:
            # Up to 0.5.9, servers that send only new ids may leave out some.
            raise ServerError("The engine has lost tokens of its answer.")
        piece = Piece(ids, cached_tokens=meta.cached_tokens, prompt_tokens=meta.prompt_tokens)
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
