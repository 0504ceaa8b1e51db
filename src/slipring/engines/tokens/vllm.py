"""The vllm engine: what vLLM alone is sent and answers, and its ways to take pictures.

Token ids go to a vLLM server's ``/v1/completions``. Without a local tokenizer of the model the server's
``/tokenize`` is used, only for text that is new. If the server has loaded the plugin of
``vllm_plugin.sessions``, turns of a chain send their new ids only.

A server that was started with ``--enable-scale-out`` takes pictures beside ids, which have one placeholder
for each picture. It keeps pictures by their names: those of earlier turns are named, and not sent again
unless the server has dropped them. Any other server takes them by its chat endpoint, which renders all
messages.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, structs

from slipring.base.errors import InvalidRequest, ServerError, StartupError, Unavailable
from slipring.base.surrogates import repaired
from slipring.core.generation import Job, Settings
from slipring.engines.chat.request_body import EMPTY_TOOLBOX, MessageWriter, offered_tools, toolbox
from slipring.engines.constraints.server_constraint import Constraint
from slipring.engines.constraints.supported_constraints import takes_tags
from slipring.engines.remote.http_client import HttpClient, spliced
from slipring.engines.remote.http_connection import BadStatus, HttpFailure
from slipring.engines.remote.replica_affinity import DYNAMO_FINAL, DYNAMO_SESSION, tenant_salt
from slipring.engines.scheduling.chain_ends import ChainEnds
from slipring.engines.scheduling.priorities_and_hints import AnswerLengths, agent_hints, urgency
from slipring.engines.tokens.job_exchange import JobExchange, Request
from slipring.engines.tokens.job_rendering import data_urls, position_of
from slipring.engines.tokens.model_files import ModelInfo, read_tokenizer, unnamed_tokenizer
from slipring.engines.tokens.pictured_requests import PicturedExchange, grey_square_url
from slipring.engines.tokens.remote_vocabulary import (
    MARKS,
    ServerVocabulary,
    spelling_pattern,
    split_spellings,
    tokenizer_errors,
)
from slipring.engines.tokens.server_options import VllmOptions, read_options
from slipring.engines.tokens.sessions import Addressed, SessionProtocol
from slipring.engines.tokens.template_choice import NoTemplate
from slipring.engines.tokens.token_answer import Fault, Piece, PieceParser, TokenAnswer, failure, reason_of
from slipring.engines.tokens.token_server import Offer, Served, TokenServer
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.responses import Logprob, TopLogprob

log = logging.getLogger("slipring")
_OLDEST = "0.11"
"""The oldest version that returns the ids it emits and takes ``structured_outputs``."""
_AS_ID = "token_id:"
_CACHE_CONFIG = "vllm:cache_config_info{"
"""The metric whose labels describe the KV cache."""
_NO_PREFIX_CACHE = 'enable_prefix_caching="False"'
_SIZES = re.compile(r'\b(num_gpu_blocks|block_size)="(\d+)"')
_TOKENIZER = "tokenizer.json"
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_SESSIONS = "/v1/slipring/sessions"
"""Where the plugin answers."""
_USUAL = ("<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BARRED = r"<\|[^<>|\s]{1,60}\|>"
"""How most vocabularies spell control tokens. Text of this form is never tokenized as one."""
_BY_IDS, _BY_CHAT = "/inference/v1/generate", "/v1/chat/completions"
_RESENT = "the server takes pictures by its chat endpoint only: all messages are sent again"
_PictureWay = Literal["ids", "chat"]
_NOT_THERE = (403, 404, 405, 501)
"""vLLM 0.32 answers with the first unless it was started with the flag."""
_REFUSED = (400, 422)


class VllmEngine(TokenServer):
    """A vLLM server and its model."""

    name = "vllm"
    maker = "a vLLM server"
    options: VllmOptions

    @classmethod
    def from_options(cls, text: str) -> "VllmEngine":
        return cls(read_options(cls.name, VllmOptions, text))

    _way: _PictureWay = "chat"
    """How it takes pictures, if its model sees. Set by ``start``."""

    def __init__(self, options: VllmOptions) -> None:
        super().__init__(options)
        if options.hints:
            self.answer_lengths = AnswerLengths()

    async def start(self) -> None:
        try:
            await super().start()
        except NoTemplate:
            if self.options.tokenizer:
                raise
            raise unnamed_tokenizer(self.name, self.options.url, self.served.root) from None
        if self.renderer.takes_pictures:
            self._way = await _find_picture_way(self._upstream.client)
        if self.options.report_ends:
            self.chain_ends = ChainEnds(self._report_end)

    async def _report_end(self, key: str) -> None:
        stop = min(self.renderer.stop_ids())  # any token of the model
        asked = {"model": self.served.name, "prompt": [stop], "max_tokens": 1, "stream": True}
        headers = {DYNAMO_SESSION: key, DYNAMO_FINAL: "true"}
        request = Request("/v1/completions", [wire.encode(asked)], headers, partial(_Parser, self, 0))
        await self.process(request)

    async def find_vocabulary(self) -> tuple[Vocabulary, ModelInfo]:
        options, path = self.options, self.options.tokenizer
        info = ModelInfo()
        if not path:
            info = await self._server_template()
            is_known = bool(info.template or options.dialect)
            if not is_known and await asyncio.to_thread((Path(self.served.root) / _TOKENIZER).is_file):
                path = self.served.root
        if path:
            tokenizer, info = await asyncio.to_thread(read_tokenizer, self.name, path)
            if not info.template and not options.dialect:
                # A file without a template: the server may have it.
                info = structs.replace(await self._server_template(), sampling=info.sampling)
            return tokenizer, info
        vocabulary = VllmVocabulary(self._upstream.client.query_from_thread, self.served)
        try:
            await asyncio.to_thread(vocabulary.learn_control, {*info.token_names(), *_USUAL, *MARKS})
        except Unavailable:
            raise StartupError(
                f"--engine vllm: {options.url} does not tokenize; name the model's tokenizer with tokenizer="
            ) from None
        return vocabulary, info

    async def sees(self) -> bool:
        return await _takes_pictures(self._upstream.client, self.served.name)

    async def refuses_pictures(self, urls: Sequence[str]) -> bool:
        return await _refuses_pictures(self._upstream.client, self.served.name, urls)

    async def picture_way(self, renderer: Renderer) -> str:
        if await _find_picture_way(self._upstream.client) == "ids":
            return "beside ids, new ones only"
        return "by the chat endpoint, everything in each turn (--enable-scale-out: beside ids)"

    def resent(self, job: Job, sent: Rendered) -> str | None:
        return _RESENT if sent.body.pictures and self._way == "chat" and job.parent is not None else None

    def exchange(
        self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None, answer: TokenAnswer
    ) -> JobExchange:
        if not sent.body.pictures:
            return super().exchange(job, sent, limit, constraint, answer)
        known = _known_digests(job, sent) if self._way == "ids" else frozenset[str]()
        write = partial(self._with_pictures, job, sent, constraint)
        in_thread = partial(self.tokenizing.run, job.tenant, is_local=True)
        lean = partial(write, known) if known else None
        return PicturedExchange(self.attempt, job, write, answer, in_thread, self.refuses_pictures, lean)

    def _with_pictures(
        self, job: Job, sent: Rendered, constraint: Constraint | None, known: frozenset[str] = frozenset()
    ) -> Request:
        """The request for a context with pictures, without the data of those that are known. Takes time in
        proportion to the data."""
        settings, salt = job.settings, tenant_salt(job.tenant)
        sampling = self._with_marks(settings)
        # The server knows how much room there is beside the pictures.
        if not job.generate or settings.max_output_tokens is not None:
            sampling["max_tokens"] = settings.max_output_tokens if job.generate else 1
        if constraint is not None:
            sampling["structured_outputs"] = _structured_outputs(constraint)
        body = {**self._common(job), **_STREAMED}
        if self.options.hints:
            body |= agent_hints(job)
        headers = self._upstream.affinity_headers(job)
        read = partial(_Parser, self, settings.top_logprobs)
        wants_logprobs = settings.logprobs and job.generate
        if self._way == "chat":
            if wants_logprobs:
                sampling |= {"logprobs": True, "top_logprobs": settings.top_logprobs}
            pieces = _chat_pieces(job, {**body, **sampling, "return_token_ids": True})
            return Request(_BY_CHAT, pieces, headers, read)
        if wants_logprobs:
            sampling["logprobs"] = settings.top_logprobs
        sampling["detokenize"] = not self.renderer.vocabulary.is_local
        body |= {
            "sampling_params": sampling,
            "output_mode": "tokens" if self.renderer.vocabulary.is_local else "text",
        }
        body["content_parts"] = content_parts(job, sent, salt, known)
        pieces = spliced(b'{"token_ids":[', sent.json_pieces(), b"]," + wire.encode(body)[1:])
        return Request(_BY_IDS, pieces, headers, read)

    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        if sent.body.pictures:
            return self._with_pictures(job, sent, constraint)
        body = {
            **self._common(job),
            **_STREAMED,
            "return_token_ids": True,
            "max_tokens": limit,
            **self._with_marks(job.settings),
        }
        if job.settings.logprobs and job.generate:
            is_local = self.renderer.vocabulary.is_local
            body |= {"logprobs": job.settings.top_logprobs, "return_tokens_as_token_ids": is_local}
        if self.answer_lengths is not None:
            body |= agent_hints(job, self.answer_lengths.expected(limit))
        if constraint is not None:
            body["structured_outputs"] = _structured_outputs(constraint)
        pieces = spliced(b'{"prompt":[', sent.json_pieces(), b"]," + wire.encode(body)[1:])
        headers = self._upstream.affinity_headers(job)
        return Request("/v1/completions", pieces, headers, partial(_Parser, self, job.settings.top_logprobs))

    def takes_session(self, job: Job, constraint: Constraint | None) -> bool:
        settings = job.settings
        has_own = (
            constraint is not None or settings.seed is not None or settings.logit_bias or settings.logprobs
        )
        return not self.offer.whole or not job.generate or not has_own

    def write_in_session(
        self, job: Job, sent: Rendered, addressed: Addressed, limit: int, constraint: Constraint | None
    ) -> Request:
        sampling: dict[str, Any] = {
            # vLLM prefills for no less than one token. It drops the last one that it emits.
            "max_tokens": max(limit, 1),
            "stop_token_ids": sorted(self.renderer.stop_ids()),
            "detokenize": not self.renderer.vocabulary.is_local,
        }
        if limit:
            sampling |= self._sampling(job.settings)
            if job.settings.logprobs:
                sampling["logprobs"] = job.settings.top_logprobs
        if constraint is not None:
            sampling["structured_outputs"] = _structured_outputs(constraint)
        body = {
            **self._common(job),
            "session": addressed.id,
            "held": addressed.held,
            "sampling": sampling,
            "idle_s": self.options.session_idle_s,
        }
        pieces = spliced(b'{"prompt":[', addressed.pieces, b"]," + wire.encode(body)[1:])
        headers = self._upstream.affinity_headers(job)
        return Request(_SESSIONS, pieces, headers, partial(_Parser, self, job.settings.top_logprobs))

    async def offered_sessions(self) -> Offer:
        try:
            limits = msgspec.convert(await self.query(_SESSIONS), _SessionLimits)
        except HttpFailure:
            return Offer(refused="the server has none; start it with VLLM_PLUGINS=slipring_sessions")
        except msgspec.ValidationError:
            return Offer(refused="the server has the plugin of another version of slipring", is_fault=True)
        if not limits.most_sessions:
            return Offer(refused=limits.refused or "no sessions are opened", is_fault=True)
        return Offer(
            limits.most_sessions,
            limits.most_tokens,
            whole=limits.whole,
        )

    def session_protocol(self) -> SessionProtocol:
        return SessionProtocol("vLLM", None, self._end_session, keeps_last=False)

    async def _end_session(self, session_id: str, route: str) -> None:
        path, headers = f"{_SESSIONS}/{session_id}/end", self._upstream.route_headers(route)
        await self._upstream.client.query(path, [b""], headers=headers)

    def _sampling(self, settings: Settings) -> dict[str, Any]:
        """Only what is known here: for the rest vLLM uses the ``generation_config.json`` of its model."""
        fields = self.sampling.known_fields(settings, penalty_name="repetition_penalty")
        return fields if settings.seed is None else {**fields, "seed": settings.seed}

    def _with_marks(self, settings: Settings) -> dict[str, Any]:
        """The sampling of an answer that is sent with its control tokens."""
        return {
            "stop_token_ids": sorted(self.renderer.stop_ids()),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            **self._sampling(settings),
        }

    def _common(self, job: Job) -> dict[str, Any]:
        """The fields of every request for an answer."""
        body: dict[str, Any] = {"model": self.served.name, "cache_salt": tenant_salt(job.tenant)}
        if self.options.priorities:
            body["priority"] = 2 - urgency(job)  # the lower value goes first
        return body

    async def cache_tokens(self) -> int | None:
        try:
            metrics = (await self._upstream.client.fetch("/metrics")).decode("utf-8", "replace")
        except HttpFailure:
            return None
        line = next((line for line in metrics.splitlines() if line.startswith(_CACHE_CONFIG)), "")
        if _NO_PREFIX_CACHE in line:
            log.warning("%s: runs without prefix caching: whole histories are prefilled", self.options.url)
        sizes = {name: int(value) for name, value in _SIZES.findall(line)}
        return sizes.get("num_gpu_blocks", 0) * sizes.get("block_size", 0) or None

    async def takes_tags(self) -> bool:
        return takes_tags("vllm", (await self.query("/version")).get("version"))

    async def _server_template(self) -> ModelInfo:
        """The model's template as the server returns it; empty if its ``/tokenizer_info`` is not enabled."""
        try:
            return ModelInfo.from_tokenizer_config(await self.query("/tokenizer_info"))
        except (HttpFailure, ValueError, LookupError, TypeError, AttributeError):
            return ModelInfo()


async def _takes_pictures(client: HttpClient, model: str) -> bool:
    """Whether a server's model takes pictures: whether it tokenizes a message with one."""
    try:
        await _tokenize_pictures(client, model, [grey_square_url()])
    except HttpFailure:
        return False
    return True


async def _refuses_pictures(client: HttpClient, model: str, urls: Sequence[str]) -> bool:
    """Whether a server refuses to tokenize a message with these pictures, which it decodes for that."""
    try:
        await _tokenize_pictures(client, model, urls)
    except BadStatus as error:
        return error.status in _REFUSED
    except HttpFailure:
        return False
    return False


async def _tokenize_pictures(client: HttpClient, model: str, urls: Sequence[str]) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    asked = {"model": model, "messages": [{"role": "user", "content": parts}]}
    await client.query("/tokenize", [await asyncio.to_thread(wire.encode, asked)])


async def _find_picture_way(client: HttpClient) -> _PictureWay:
    """How a server takes pictures."""
    try:
        await client.query(_BY_IDS, [b"{}"])
    except BadStatus as error:
        return "chat" if error.status in _NOT_THERE else "ids"
    except HttpFailure:
        return "chat"
    return "ids"


def _known_digests(job: Job, sent: Rendered) -> frozenset[str]:
    """Which pictures of a context its parent has."""
    parent = position_of(job)
    return frozenset(parent.digests()).intersection(sent.digests()) if parent is not None else frozenset()


def content_parts(job: Job, sent: Rendered, salt: str, known: frozenset[str]) -> list[dict[str, Any]]:
    """The pictures of a context with their data, but for those that are known. Their names differ by tenant:
    a server that knows a picture answers sooner."""
    urls = data_urls(job, set(sent.digests()) - known)
    return [
        {
            "type": "image_url",
            "url": urls.get(digest),
            "uuid": hashlib.blake2b(f"{salt}{digest}".encode(), digest_size=32).hexdigest(),
        }
        for digest in sent.digests()
    ]


def _chat_pieces(job: Job, fields: dict[str, Any]) -> list[bytes]:
    """The body of a request to the chat endpoint. The server's parsers of calls are left out: the answer is
    read by its ids."""
    messages = MessageWriter().extend(None, tuple(job.context())).json()
    if job.head.instructions is not None:
        messages.insert(0, b'{"role":"system","content":' + bytes(job.head.instructions_json) + b"}")
    box = toolbox(offered_tools(job.offer), EMPTY_TOOLBOX)
    if box.tools:
        fields = {**fields, "tools": Raw(box.json), "tool_choice": "none"}
    return spliced(b'{"messages":[', messages, b"]," + wire.encode(fields)[1:])


def _structured_outputs(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case "tag":
            return {"structural_tag": constraint.text}
        case "grammar":
            return {"grammar": constraint.text}
        case "schema":
            return {"json": Raw(constraint.text)}


class _SessionLimits(Struct):
    """How many sessions the plugin allows, and how many tokens all of them may hold."""

    most_sessions: int
    most_tokens: int
    refused: str
    """Why it allows none, if so."""
    whole: str
    """Why a turn with settings of its own has to be sent whole, if so."""


class _NamedLogprob(Struct):
    """A token by its id, or by its text."""

    logprob: float
    token_id: int | None = None
    token: str = ""
    top_logprobs: list["_NamedLogprob"] = []


class _Logprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    content: list[_NamedLogprob] | None = None
    """Of requests with pictures, instead of the other fields."""


class _ChatDelta(Struct):
    role: str | None = None
    content: str | None = None


class _Choice(Struct):
    text: str = ""
    delta: _ChatDelta | None = None
    """Of the chat endpoint."""
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Fault | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _Parser(PieceParser):
    """Parses a streamed completion."""

    def __init__(self, engine: VllmEngine, top_logprobs: int) -> None:
        self._engine = engine
        self._top_logprobs = top_logprobs

    def read(self, payload: bytes) -> Piece:
        try:
            chunk = _chunk.decode(payload)
        except msgspec.DecodeError:
            chunk = _chunk.decode(repaired(payload))
        if chunk.error is not None:
            raise failure(chunk.error)
        details = chunk.usage.prompt_tokens_details if chunk.usage is not None else None
        cached_tokens = details.cached_tokens if details is not None else None
        prompt_tokens = chunk.usage.prompt_tokens if chunk.usage is not None else None
        if not chunk.choices:
            return Piece(cached_tokens=cached_tokens, prompt_tokens=prompt_tokens)
        choice = chunk.choices[0]
        ids = choice.token_ids
        if ids is None and choice.delta is not None and choice.delta.role is not None:
            ids = []  # the chat endpoint announces its answer
        if ids is None:
            raise ServerError(f"The engine does not return token ids: vLLM {_OLDEST} or newer is needed.")
        text = choice.text if choice.delta is None else choice.delta.content or ""
        piece = Piece(ids, text, cached_tokens=cached_tokens, prompt_tokens=prompt_tokens)
        if choice.logprobs is not None:
            piece.logprobs = self._logprobs(choice.logprobs, len(ids))
        if choice.finish_reason is not None:
            piece.reason = reason_of(choice.finish_reason)
            if piece.reason == "stop" and ids:
                # The model's own end token is not named as the stop reason: it is the last id.
                piece.stop_id = choice.stop_reason if isinstance(choice.stop_reason, int) else ids[-1]
        return piece

    def _logprobs(self, sent: _Logprobs, count: int) -> list[Logprob]:
        if sent.content is not None:
            return list(map(self._pictured_logprob, sent.content))
        if not len(sent.tokens) == len(sent.token_logprobs) == len(sent.top_logprobs) == count:
            raise ServerError("The engine's answer cannot be read.")
        found = []
        for token, logprob, top in zip(sent.tokens, sent.token_logprobs, sent.top_logprobs, strict=True):
            # The chosen token is among the top ones even if it is less likely: one more than asked for.
            others = sorted((top or {}).items(), key=lambda each: -each[1])[: self._top_logprobs]
            this = self._named(token, logprob if logprob is not None else 0.0)
            likely = [self._named(*other) for other in others]
            found.append(Logprob(this.token, this.logprob, this.bytes, likely))
        return found

    def _pictured_logprob(self, sent: _NamedLogprob) -> Logprob:
        this = self._found(sent)
        likely = [self._found(each) for each in sent.top_logprobs[: self._top_logprobs]]
        return Logprob(this.token, this.logprob, this.bytes, likely)

    def _found(self, sent: _NamedLogprob) -> TopLogprob:
        name = sent.token if sent.token_id is None else f"{_AS_ID}{sent.token_id}"
        return self._named(name, sent.logprob)

    def _named(self, token: str, logprob: float) -> TopLogprob:
        id = token.removeprefix(_AS_ID)
        if token.startswith(_AS_ID) and id.isdecimal() and self._engine.renderer.vocabulary.is_local:
            return self._engine.top_logprob(int(id), logprob)
        return TopLogprob(token, logprob, list(token.encode()))


class VllmVocabulary(ServerVocabulary):
    """A vocabulary behind vLLM's ``/tokenize``, which finds control tokens in any text."""

    def __init__(self, query: Callable[[str, object], Any], served: Served) -> None:
        """``query`` posts a body to a path and waits for the JSON answer."""
        super().__init__(f"{served.root} {served.name}")
        self._query, self._model = query, served.name
        self._starts = spelling_pattern((), _BARRED)
        self._forbidden: frozenset[int] = frozenset()

    def learn_control(self, names: Iterable[str]) -> None:
        super().learn_control(names)
        # White space is always text, even if a vocabulary lists it as a control token.
        spelled = {name: id for name, id in self._control.items() if len(name) > 1 and not name.isspace()}
        self._starts = spelling_pattern(spelled, _BARRED)
        self._forbidden = frozenset(spelled.values())

    def _pieces(self, text: str) -> list[str]:
        return split_spellings(text, self._starts)

    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        ids = self._tokenize(text)
        if not self._forbidden.isdisjoint(ids):
            raise InvalidRequest("The input spells a control token of the model in a way that is not known.")
        return ids

    def _ask_control(self, token: str) -> int | None:
        # An ordinary word that is one token counts as well: its id is the same either way.
        ids = self._tokenize(token)
        return ids[0] if len(ids) == 1 else None

    def _tokenize(self, text: str) -> tuple[int, ...]:
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        with tokenizer_errors():
            return tuple(self._query("/tokenize", asked)["tokens"]) if text else ()
