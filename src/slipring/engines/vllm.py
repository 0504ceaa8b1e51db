"""The vllm engine: a vLLM server elsewhere, by token ids over ``/v1/completions``.

Without a tokenizer of the model at hand, text is tokenized by the server, and only ever what is new.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from slipring.core.generation import Job, Settings
from slipring.engines.constraints.constraint import Constraint
from slipring.engines.remote.body_splicing import spliced
from slipring.engines.remote.startup_queries import ask
from slipring.engines.remote.upstream import tenant_salt
from slipring.engines.tokens.remote_vocabulary import MARKS, AskedVocabulary, apart, starts_of, tokenizing
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
from slipring.errors import InvalidRequest, ServerError, StartupError, Unavailable
from slipring.prompts.rendering import Rendered
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.responses import Logprob, TopLogprob

_OLDEST = "0.11"
"""Names the ids it emits, and knows ``structured_outputs``."""
_AS_ID = "token_id:"
_USUAL = ("<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BARRED = r"<\|[^<>|\s]{1,60}\|>"
"""How control tokens are spelled in most vocabularies, whether or not they are known by name."""


class VllmEngine(TokenServer):
    """A model in vLLM."""

    name = "vllm"
    maker = "a vLLM server"

    def find_vocabulary(self) -> tuple[Vocabulary, Manner]:
        options = self.options
        if options.tokenizer:
            tokenizer, manner = read_tokenizer(self.name, options.tokenizer)
            # What a file alone does not tell, the server may.
            return tokenizer, manner if manner.template or options.dialect else self._told_manner()
        manner = self._told_manner()
        vocabulary = VllmVocabulary(options.url, self._key, self.served)
        try:
            vocabulary.learn_control({*manner.token_names(), *_USUAL, *MARKS})
        except Unavailable:
            raise StartupError(
                f"--engine vllm: {options.url} does not tokenize; name the model's tokenizer with tokenizer="
            ) from None
        return vocabulary, manner

    def write(self, job: Job, sent: Rendered, limit: int, constraint: Constraint | None) -> Request:
        body: dict[str, Any] = {
            "model": self.served.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": limit,
            "stop_token_ids": sorted(self.renderer.stop_ids()),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "cache_salt": tenant_salt(job.tenant),
            **_sampling(job.settings),
        }
        is_local = self.renderer.vocabulary.is_local
        if job.settings.logprobs and job.generate:
            body |= {"logprobs": job.settings.top_logprobs, "return_tokens_as_token_ids": is_local}
        if constraint is not None:
            is_grammar = constraint.kind == "grammar"
            told = {"grammar": constraint.text} if is_grammar else {"json": Raw(constraint.text)}
            body["structured_outputs"] = told
        pieces = spliced(b'{"prompt":[', sent.json_pieces(), b"]," + wire.encode(body)[1:])
        headers = self._upstream.affinity_headers(job)
        return Request("/v1/completions", pieces, headers, partial(_Reader, self, job.settings.top_logprobs))

    def _told_manner(self) -> Manner:
        """What the server tells about the model's template, if it was started so that it does."""
        try:
            return Manner.of(self.ask("/tokenizer_info"))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return Manner()


def _sampling(settings: Settings) -> dict[str, Any]:
    asked = {**sampling(settings), "top_k": 0, "repetition_penalty": 1.0}
    if settings.seed is not None:
        asked["seed"] = settings.seed
    return asked


class _Logprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class _Choice(Struct):
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Fault | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _Reader(Reader):
    """Reads a streamed completion."""

    def __init__(self, engine: VllmEngine, top_logprobs: int) -> None:
        self._engine = engine
        self._top_logprobs = top_logprobs

    def read(self, payload: bytes) -> Piece:
        chunk = _chunk.decode(payload)
        if chunk.error is not None:
            raise failure(chunk.error)
        details = chunk.usage.prompt_tokens_details if chunk.usage is not None else None
        cached_tokens = details.cached_tokens if details is not None else None
        if not chunk.choices:
            return Piece(cached_tokens=cached_tokens)
        choice = chunk.choices[0]
        ids = choice.token_ids
        if ids is None:
            raise ServerError(f"The engine does not name its tokens: vLLM {_OLDEST} or newer is needed.")
        piece = Piece(ids, choice.text, cached_tokens=cached_tokens)
        if choice.logprobs is not None:
            piece.logprobs = self._logprobs(choice.logprobs, len(ids))
        if choice.finish_reason is not None:
            piece.reason = reason_of(choice.finish_reason)
            if piece.reason == "stop" and ids:
                # The end of a text is not named: it is the last of what was said.
                piece.stop_id = choice.stop_reason if isinstance(choice.stop_reason, int) else ids[-1]
        return piece

    def _logprobs(self, told: _Logprobs, count: int) -> list[Logprob]:
        if not len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == count:
            raise ServerError("The engine's answer cannot be read.")
        found = []
        for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
            # The token that was chosen comes with the others, likely or not.
            others = sorted((top or {}).items(), key=lambda each: -each[1])[: self._top_logprobs]
            this = self._named(token, logprob if logprob is not None else 0.0)
            likely = [self._named(*other) for other in others]
            found.append(Logprob(this.token, this.logprob, this.bytes, likely))
        return found

    def _named(self, token: str, logprob: float) -> TopLogprob:
        id = token.removeprefix(_AS_ID)
        if token.startswith(_AS_ID) and id.isdecimal() and self._engine.renderer.vocabulary.is_local:
            return self._engine.top_logprob(int(id), logprob)
        return TopLogprob(token, logprob, list(token.encode()))


class VllmVocabulary(AskedVocabulary):
    """A vocabulary behind vLLM's ``/tokenize``, which finds control tokens in any text."""

    def __init__(self, url: str, key: str, served: Served) -> None:
        super().__init__(f"{served.root} {served.name}")
        self._url, self._key, self._model = url, key, served.name
        self._starts = starts_of((), _BARRED)
        self._forbidden: frozenset[int] = frozenset()

    def learn_control(self, names: Iterable[str]) -> None:
        super().learn_control(names)
        # Text is all that white space can be, whatever a vocabulary says.
        spelled = {name: id for name, id in self._control.items() if len(name) > 1 and not name.isspace()}
        self._starts = starts_of(spelled, _BARRED)
        self._forbidden = frozenset(spelled.values())

    def _pieces(self, text: str) -> list[str]:
        return apart(text, self._starts)

    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        ids = self._tokenize(text)
        if not self._forbidden.isdisjoint(ids):
            raise InvalidRequest("The input spells a control token of the model in a way that is not known.")
        return ids

    def _ask_control(self, token: str) -> int | None:
        # A word that is one token anyway may count as one: it is written the same.
        ids = self._tokenize(token)
        return ids[0] if len(ids) == 1 else None

    def _tokenize(self, text: str) -> tuple[int, ...]:
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        with tokenizing():
            return tuple(ask(self._url, self._key, "/tokenize", asked)["tokens"]) if text else ()
