"""What fakes that are sent token ids share: a real vocabulary, scripts as ids, a check of prompts."""

import asyncio
import atexit
import codecs
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from aiohttp import web

from slipring.engines.tokens.server_options import TokenServerOptions
from slipring.engines.tokens.token_server import TokenServer
from tests.engines.fakes.server import (
    PATIENT,
    Call,
    FakeServer,
    Garbage,
    HangUp,
    Ids,
    Refuse,
    Say,
    Stall,
    Step,
    Stop,
    Think,
)
from tests.prompts.vocabulary import smollm2

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = smollm2()
END = TOKENIZER.control("<|im_end|>")
CONTEXT = 8192
_NAMES = {TOKENIZER.control(name): name for name in TOKENIZER.control_tokens()}


@cache
def _directory() -> TemporaryDirectory[str]:
    directory = TemporaryDirectory(prefix="slipring-tokenizer-")
    atexit.register(directory.cleanup)
    described = json.loads(TOKENIZER._backend.to_str())
    described["added_tokens"] = [
        {"id": id, "content": name, "special": True} for id, name in sorted(_NAMES.items())
    ]
    Path(directory.name, "tokenizer.json").write_text(json.dumps(described))
    config = {"chat_template": TEMPLATE, "eos_token": {"content": "<|im_end|>"}}
    Path(directory.name, "tokenizer_config.json").write_text(json.dumps(config))
    Path(directory.name, "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.95}))
    return directory


def tokenizer_directory() -> str:
    """SmolLM2's vocabulary as Hugging Face lays it out."""
    return _directory().name


def decoded(ids: Iterable[int]) -> str:
    """The text of ids, control tokens by name."""
    pieces = (_NAMES[id].encode() if id in _NAMES else TOKENIZER.bytes_of(id) for id in ids)
    return b"".join(pieces).decode("utf-8", "replace")


@dataclass(frozen=True)
class Chunk:
    """Some ids of an answer, and why it ends with them if it does."""

    ids: list[int]
    text: str
    reason: str | None = None


class FakeTokenServer(FakeServer):
    """A server that is sent ids. It accepts only contexts in ChatML."""

    can_refuse_content = False
    maker: ClassVar[type[TokenServer]]
    known_options: ClassVar[type[TokenServerOptions]] = TokenServerOptions
    path: ClassVar[str]
    prompt_field: ClassVar[str]

    port = 0
    """Where it listens; 0: on any free port."""
    replica = ""
    """What its answers call it, as slipring's plugin for vLLM does; empty: nothing."""
    model_name = "smollm2"
    checks_prompts = True
    cannot_decode = ""
    """The URL of a picture that its decoder refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        """How often it was asked about pictures alone."""
        self.questioned: Callable[[], Refuse | None] = lambda: None
        """How it fails when it is asked so; None: it decodes the pictures."""
        self.prompts: list[list[int]] = []
        self.bodies: list[bytes] = []
        self.is_healthy = True
        self._runner: web.AppRunner | None = None
        self.url = ""

    def options(self, **options: Any) -> TokenServerOptions:
        known = {"tokenizer": tokenizer_directory(), "model": self.model_name, "context": CONTEXT}
        return self.known_options(url=self.url, **{**PATIENT, **known, **options})

    def engine(self, **options: Any) -> TokenServer:
        return self.maker(self.options(**options))

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.post(self.path, self._generate), web.get("/health", self._health)])
        app.add_routes(self.routes())
        app.on_response_prepare.append(self._name)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _name(self, request: web.Request, answer: web.StreamResponse) -> None:
        if self.replica:
            answer.headers["x-slipring-replica"] = self.replica

    async def close(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """Further routes of this kind of server."""

    @abstractmethod
    def events(self, body: dict[str, Any], chunk: Chunk, ids: list[int], stop: Stop) -> list[Any]:
        """A chunk as this server streams it, and at the end what follows it. ``ids`` are all ids so far."""

    def prompt_of(self, body: dict[str, Any]) -> list[int] | None:
        """All ids of a request's prompt; None if it continues a context that the server does not have."""
        ids: list[int] = body[self.prompt_field]
        return ids

    def fault_of(self, prompt: list[int]) -> str | None:
        """What is wrong with a prompt; None: nothing."""
        return _fault_of(decoded(prompt)) if self.checks_prompts else None

    def verdict_on(self, asked: str) -> Refuse | None:
        """How it refuses a question about the pictures whose URLs are in ``asked``; None: it does not."""
        self.questions += 1
        if (failure := self.questioned()) is not None:
            return failure
        is_refused = self.cannot_decode and self.cannot_decode in asked
        return Refuse(400, "cannot identify image file") if is_refused else None

    def refuse(self, refused: Refuse) -> web.Response:
        fault = {"message": refused.message, "type": "BadRequestError", "param": None, "code": refused.status}
        return web.json_response({"error": fault}, status=refused.status, headers=refused.headers)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        script = self.next_script()
        self.bodies.append(raw)
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        prompt = self.prompt_of(body)
        if prompt is None:
            return self.refuse(Refuse(400, "no such session"))
        self.prompts.append(prompt)
        if (fault := self.fault_of(prompt)) is not None:
            return self.refuse(Refuse(400, fault))
        if script and isinstance(script[0], Refuse):
            return self.refuse(script[0])
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await self._play(request, answer, body, script)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        return answer

    async def _play(
        self, request: web.Request, answer: web.StreamResponse, body: dict[str, Any], script: tuple[Step, ...]
    ) -> None:
        if not isinstance(script[0], HangUp):
            await answer.prepare(request)
        emitted: list[int] = []
        stop = next((step for step in script if isinstance(step, Stop)), Stop())
        for action in actions(script):
            if isinstance(action, Chunk):
                emitted += action.ids
                for event in self.events(body, action, emitted, stop):
                    payload = event if isinstance(event, str) else json.dumps(event)
                    await answer.write(f"data: {payload}\n\n".encode())
            elif isinstance(action, Garbage):
                await answer.write(b"data: {nothing of the kind\n\n")
            elif isinstance(action, asyncio.Event):
                await action.wait()
            elif isinstance(action, Stall):
                self.stalled.set()
                await asyncio.sleep(3600)
            else:
                assert request.transport is not None
                request.transport.abort()
                return
        await answer.write_eof()


def actions(script: tuple[Any, ...]) -> list[Any]:
    """A script as chunks: one per word, and the end as a separate stop token or with the last word."""
    actions: list[Any] = []
    characters = codecs.getincrementaldecoder("utf-8")("replace")  # decoded once they are complete
    for step in script:
        if isinstance(step, Say):
            actions += [_chunk(word) for word in step.words]
            if step.rest is not None:
                actions.insert(1 - len(step.words), step.rest)
        elif isinstance(step, Think):
            actions += [_chunk("<think>"), *map(_chunk, step.words), _chunk("</think>")]
        elif isinstance(step, Call):
            written = f'{{"name": "{step.name}", "arguments": {step.arguments}}}'
            actions += map(_chunk, ("<tool_call>\n", written[:9], written[9:], "\n</tool_call>"))
        elif isinstance(step, Ids):
            text = characters.decode(b"".join(map(TOKENIZER.bytes_of, step.ids)))
            actions.append(Chunk(list(step.ids), text))
        elif isinstance(step, Stop) and step.reason == "length":
            actions[-1] = Chunk(actions[-1].ids, actions[-1].text, "length")
        elif isinstance(step, Stop):
            actions.append(Chunk([END], "", "stop"))
        else:
            actions.append(step)
    return actions


def _chunk(text: str) -> Chunk:
    return Chunk(TOKENIZER.encode(text), text)


def _fault_of(prompt: str) -> str | None:
    """What is wrong with a prompt that should be ChatML, closed or open for the model; None: nothing."""
    blocks = prompt.split("<|im_start|>")
    if blocks[0] or not prompt:
        return "the prompt does not begin with a block"
    roles = {block.partition("\n")[0] for block in blocks[1:]}
    if not roles <= {"system", "user", "assistant"}:
        return f"roles {sorted(roles)}"
    if not all(block.endswith("<|im_end|>\n") for block in blocks[1:-1]):
        return "a block is not closed"
    return None
