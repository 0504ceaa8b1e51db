"""A fake vLLM that serves a model of a family: it emits answers in the family's own format, as token ids."""

import json
from collections import deque
from typing import Any

from aiohttp import web
from msgspec import Struct

from slipring.engines.tokens.model_files import read_tokenizer
from slipring.prompts.parsing.answer_writer import Call, Piece, answer_pieces
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder
from tests.engines.fakes.server import Stop
from tests.engines.fakes.tokens import Chunk
from tests.engines.fakes.vllm import FakeVllm


class Answer(Struct, frozen=True, kw_only=True):
    """What the model answers. Thoughts are left out by formats that have none."""

    thoughts: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    written: str = ""
    """The rest of the answer as the model writes it: what spells a mark is that mark's token."""
    is_cut: bool = False
    """Ends with its last token, because it may have no more."""


class FakeFamilyServer(FakeVllm):
    """vLLM with a model whose files are in ``directory``.

    ``ends``: the tokens that end an answer of text and one of calls.
    """

    def __init__(self, directory: str, format: OutputFormat, ends: tuple[str, str]) -> None:
        super().__init__()
        self.directory = directory
        self.format = format
        self.answers: deque[Answer] = deque()
        self.prefilled: list[list[int]] = []
        """The prompts of requests for a single token, which prefills and warmups send."""
        self.emitted: list[list[int]] = []
        """The ids of each answer, without the token that ends it."""
        self._ends = ends
        self._tokenizer, _ = read_tokenizer("vllm", directory)
        self._finder = ControlTokenFinder(self._tokenizer, "")

    def engine(self, **options: Any) -> Any:
        return super().engine(**{"tokenizer": self.directory, **options})

    def fault_of(self, prompt: list[int]) -> str | None:
        return None

    def events(self, body: dict[str, Any], chunk: Chunk, ids: list[int], stop: Stop) -> list[Any]:
        events = super().events(body, chunk, ids, stop)
        if chunk.reason == "stop":
            events[0]["choices"][0]["stop_reason"] = chunk.ids[-1]
        return events

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body[self.prompt_field]
        if body["max_tokens"] == 1:
            self.prefilled.append(prompt)
            events = self.events(body, Chunk([0], "", "length"), [0], Stop("length"))
            lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
            text = "".join(f"data: {line}\n\n" for line in lines)
            return web.Response(text=text, content_type="text/event-stream")
        answer = self.answers.popleft()
        ids = self._emit(prompt, answer)
        self.emitted.append(ids)
        last = Chunk([self._tokenizer.control(self._ends[bool(answer.calls)])], "", "stop")
        if answer.is_cut:
            *ids, cut = ids
            last = Chunk([cut], "", "length")
        half = len(ids) // 2
        chunks = [Chunk(part, "") for part in (ids[:half], ids[half:]) if part]
        self.scripts.append((*chunks, last))  # type: ignore[arg-type]
        return await super()._generate(request)

    def _emit(self, prompt: list[int], answer: Answer) -> list[int]:
        """An answer as ids: control tokens only where the format has marks."""
        has_thoughts = bool(self.format.think_close) or self.format.is_harmony
        pieces = answer_pieces(
            self.format,
            answer.thoughts if has_thoughts else "",
            answer.text,
            answer.calls,
            opened_thought=self._opens_thought(prompt),
        )
        pieces = [*pieces, Piece(answer.written, is_mark=True)]
        ids: list[int] = []
        text = ""
        for piece in pieces:
            for part in self._finder.split(piece.text) if piece.is_mark else [piece.text]:
                if isinstance(part, str):
                    text += part
                else:
                    ids += [*self._tokenizer.encode(text), part]
                    text = ""
        return ids + self._tokenizer.encode(text)

    def _opens_thought(self, prompt: list[int]) -> bool:
        mark = self.format.think_open.strip()
        names = {self._tokenizer.control(name): name for name in self._tokenizer.control_tokens()}
        last = prompt[-200:]
        text = b"".join(names[id].encode() if id in names else self._tokenizer.bytes_of(id) for id in last)
        return bool(mark) and text.decode(errors="replace").rstrip().endswith(mark)
