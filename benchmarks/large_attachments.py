"""Measures how long the largest documents and pictures of clients hold the event loop.

    python benchmarks/large_attachments.py [--engine chat vllm …] [--kind pdf …] [--only PATTERN] [--where]

A server in a process of its own runs asyncio's loop, in which every callback is timed: as CPU time of the
loop's thread, which other processes do not change. A client sends files of 10 MiB by every API and transport,
and resends, continues, lists and refers to them. For each step, the longest callback is printed; with
``--where``, which calls in it took the time (profiled, so the times are longer then). ``CPU`` is of the
loop's thread alone; ``wall`` has what other threads have kept the interpreter lock for.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import re
import sys
import threading
import time
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.vllm_pictures import FakeSeeingVllm, seeing_directory
from tests.pdfs import pdf_of
from tests.pictures import data_url, png

Json = dict[str, Any]
MIB = 2**20
LARGEST = 10 * MIB - 4096
"""Of a file: its base64 is 14 MB, and a request may have 16 MiB."""
ENGINES = ("simulated", "chat", "responses", "vllm", "vllm-chat", "sglang", "sglang-text")


# In the server's process.


class Meter:
    """Times the callbacks of the event loop, and writes down the long ones."""

    def __init__(self, path: str, least_ms: float, *, profiles: bool) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 open as long as the process
        self._least_s = least_ms / 1000
        self._profiles = profiles
        self._stack: list[list[Any]] = []
        self._own: dict[str, float] = {}

    def install(self) -> None:
        run, meter = events.Handle._run, self

        def timed(handle: events.Handle) -> None:
            if threading.current_thread() is not threading.main_thread():
                run(handle)
                return
            if meter._profiles:
                meter._stack, meter._own = [], {}
                sys.setprofile(meter._profile)
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                run(handle)
            finally:
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                sys.setprofile(None)
                if cpu >= meter._least_s or wall >= meter._least_s:
                    meter._write(cpu, wall)

        events.Handle._run = timed  # type: ignore[method-assign,assignment]

    def _write(self, cpu: float, wall: float) -> None:
        longest = sorted(self._own.items(), key=lambda each: -each[1])[:8]
        where = [(name, round(1000 * taken, 1)) for name, taken in longest if taken > 0.001]
        told = {"cpu": round(1000 * cpu, 1), "wall": round(1000 * wall, 1), "where": where}
        self._file.write(json.dumps(told) + "\n")

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        at = time.thread_time()
        if event in ("call", "c_call"):
            code = frame.f_code
            place = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
            if (caller := frame.f_back) is not None:
                place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno} › {place}"
            name = place if event == "call" else f"{place} → {getattr(argument, '__qualname__', argument)}"
            self._stack.append([name, at, 0.0])
        elif self._stack:
            name, since, inner = self._stack.pop()
            taken = at - since
            self._own[name] = self._own.get(name, 0.0) + taken - inner
            if self._stack:
                self._stack[-1][2] += taken


def serve(path: str, least_ms: float, profiles: bool, flags: list[str]) -> None:
    sys.modules["uvloop"] = None  # type: ignore[assignment] # its handles cannot be timed one by one
    Meter(path, least_ms, profiles=profiles).install()
    from slipring.commands.cli import main

    sys.exit(main(["serve", *flags]))


# In the client's process.


def large_pdf(pages: int = 3, size: int = LARGEST, *, scanned: bool = False) -> bytes:
    """A PDF of this size. ``scanned``: its pages are drawn as noise, which no PNG compresses."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{' '.join(f'{4 + 2 * n} 0 R' for n in range(pages))}] /Count {pages} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    noise = random.Random(1)
    for number in range(pages):
        drawn = f"BT /F1 24 Tf 72 700 Td (Page {number}) Tj ET"
        if scanned:
            cells = "".join(
                f"{noise.random():.2f} {noise.random():.2f} {noise.random():.2f} rg {6 * x} {6 * y} 6 6 re f "
                for x in range(102)
                for y in range(115)
            )
            drawn = cells + drawn
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    rest = size - len(pdf_of(objects)) - 4096
    filler = random.Random(2).randbytes(rest).hex()[:rest]
    return pdf_of([*objects, f"<< /Length {rest} >>\nstream\n{filler}\nendstream"])


def user(*parts: Json) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}, *parts]}


class Kind:
    """What is sent: one large file, or many."""

    def __init__(self, name: str, *files: tuple[str, str]) -> None:
        """``files``: type and base64."""
        self.name = name
        self.files = files

    @property
    def parts(self) -> list[Json]:
        return [
            {"type": "input_file", "file_data": f"data:{kind};base64,{data}", "filename": "a.pdf"}
            if kind == "application/pdf"
            else {"type": "input_image", "image_url": f"data:{kind};base64,{data}"}
            for kind, data in self.files
        ]

    @property
    def blocks(self) -> list[Json]:
        return [
            {
                "type": "document" if kind == "application/pdf" else "image",
                "source": {"type": "base64", "media_type": kind, "data": data},
            }
            for kind, data in self.files
        ]

    @property
    def chat_parts(self) -> list[Json]:
        return [
            {"type": "file", "file": {"file_data": f"data:{kind};base64,{data}", "filename": "a.pdf"}}
            if kind == "application/pdf"
            else {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
            for kind, data in self.files
        ]


def kinds() -> list[Kind]:
    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    one = base64.b64decode(data_url(png(3200, 3200)).partition(",")[2])[: 10 * MIB]
    small = [("image/png", data_url(png(370, 370, seed=seed)).partition(",")[2]) for seed in range(80)]
    return [
        Kind("pdf", ("application/pdf", encoded(large_pdf()))),
        Kind("scan", ("application/pdf", encoded(large_pdf(6, 6 * MIB, scanned=True)))),
        Kind("picture", ("image/png", encoded(one))),
        Kind("pictures", *small),
    ]


class Client:
    """Does one step after the other, and says what the loop was held by."""

    def __init__(self, url: str, http: aiohttp.ClientSession, log: Path, only: str) -> None:
        self._url, self._http, self._log, self._only = url, http, log, re.compile(only)
        self._read = 0

    async def step(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do a step. Steps that ``only`` does not match are done, and not printed."""
        await asyncio.sleep(0.3)
        self._take()
        found: Any = None
        try:
            found = await work()
        except Exception as error:
            print(f"  {name:44} {type(error).__name__}: {str(error)[:200]}", flush=True)
        await asyncio.sleep(0.3)
        held = self._take()
        if self._only.search(name):
            cpu, wall = (max((each[key] for each in held), default=0.0) for key in ("cpu", "wall"))
            print(f"  {name:44} CPU {cpu:7.1f} ms   wall {wall:7.1f} ms   {len(held)} long", flush=True)
            for each in sorted(held, key=lambda each: -each["cpu"])[:6]:
                for where, taken in each["where"]:
                    print(f"      {each['cpu']:7.1f}  {taken:7.1f}  {where}")
        return found

    def _take(self) -> list[Json]:
        data = self._log.read_text() if self._log.exists() else ""
        found = [json.loads(line) for line in data[self._read :].splitlines()]
        self._read = len(data)
        return found

    async def call(self, method: str, path: str, **body: Any) -> Json:
        data = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        async with self._http.request(method, self._url + path, data=data, headers=headers) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status} {text[:300]}")
            if answer.content_type == "text/event-stream":
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                return dict(events[-1].get("response") or {})
            return dict(json.loads(text))

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Callable[..., Awaitable[Json]]]:
        async with self._http.ws_connect(f"{self._url}/responses", max_msg_size=0) as ws:

            async def turn(**create: Any) -> Json:
                await ws.send_str(json.dumps({"type": "response.create", **create}))
                while True:
                    event = json.loads(await ws.receive_str())
                    if event["type"] == "error":
                        raise RuntimeError(str(event)[:300])
                    if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                        return dict(event["response"])

            yield turn


async def steps(client: Client, kind: Kind, model: str) -> None:
    name, message = kind.name, user(*kind.parts)
    more = {"model": model, "max_output_tokens": 8}

    async def post(**body: Any) -> Json:
        return await client.call("POST", "/responses", **more, **body)

    first = await client.step(f"{name}: POST", lambda: post(input=[message]))
    if first is None:
        return
    await client.step(
        f"{name}: POST, not stored, streamed", lambda: post(input=[message], store=False, stream=True)
    )
    again = user({"type": "input_text", "text": "And?"})
    whole = [message, *first["output"], again]
    await client.step(f"{name}: POST, continued", lambda: post(input="?", previous_response_id=first["id"]))
    await client.step(f"{name}: POST, history sent again", lambda: post(input=whole, store=False))
    await client.step(f"{name}: POST, history sent again, stored", lambda: post(input=whole))
    await client.step(f"{name}: GET response", lambda: client.call("GET", f"/responses/{first['id']}"))
    items = f"/responses/{first['id']}/input_items"
    listed = await client.step(f"{name}: GET input_items", lambda: client.call("GET", items))
    await client.step(
        f"{name}: count tokens",
        lambda: client.call("POST", "/responses/input_tokens", model=model, input=[message]),
    )
    if listed is not None:
        reference = {"type": "item_reference", "id": listed["data"][-1]["id"]}
        await client.step(f"{name}: item_reference", lambda: post(input=[reference, again]))
    await client.step(f"{name}: background", lambda: post(input=[message], background=True))
    await asyncio.sleep(1)
    await client.step(
        f"{name}: compact", lambda: client.call("POST", "/responses/compact", model=model, input=whole)
    )
    await in_conversations(client, kind, model)
    await over_a_socket(client, kind, model)
    await by_other_apis(client, kind, model)


async def in_conversations(client: Client, kind: Kind, model: str) -> None:
    name, message = kind.name, user(*kind.parts)

    async def post(**body: Any) -> Json:
        return await client.call("POST", "/responses", model=model, max_output_tokens=8, **body)

    held = await client.step(
        f"{name}: conversation", lambda: client.call("POST", "/conversations", items=[message])
    )
    if held is not None:
        path = f"/conversations/{held['id']}"
        await client.step(f"{name}: conversation, turn", lambda: post(input="?", conversation=held["id"]))
        await client.step(
            f"{name}: conversation, turn with it", lambda: post(input=[message], conversation=held["id"])
        )
        await client.step(f"{name}: conversation, items", lambda: client.call("GET", f"{path}/items"))
        await client.step(
            f"{name}: conversation, items added",
            lambda: client.call("POST", f"{path}/items", items=[message]),
        )


async def over_a_socket(client: Client, kind: Kind, model: str) -> None:
    name, message = kind.name, user(*kind.parts)
    more = {"model": model, "max_output_tokens": 8}
    async with client.socket() as turn:
        begun = await client.step(f"{name}: socket", lambda: turn(input=[message], store=False, **more))
        if begun is not None:
            await client.step(
                f"{name}: socket, continued",
                lambda: turn(input="?", previous_response_id=begun["id"], store=False, **more),
            )
            await client.step(
                f"{name}: socket, continued and stored",
                lambda: turn(input="?", previous_response_id=begun["id"], **more),
            )


async def by_other_apis(client: Client, kind: Kind, model: str) -> None:
    name = kind.name
    asked = {"role": "user", "content": [*kind.blocks, {"type": "text", "text": "See"}]}

    async def ask(*messages: Json) -> Json:
        return await client.call("POST", "/messages", model=model, max_tokens=8, messages=list(messages))

    answer = await client.step(f"{name}: Messages", lambda: ask(asked))
    if answer is not None:
        history = (
            asked,
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": "?"},
        )
        await client.step(f"{name}: Messages, sent again", lambda: ask(*history))
    part = {"role": "user", "content": [*kind.chat_parts, {"type": "text", "text": "See"}]}

    async def complete(*messages: Json) -> Json:
        return await client.call(
            "POST", "/chat/completions", model=model, max_tokens=8, messages=list(messages)
        )

    completion = await client.step(f"{name}: Chat", lambda: complete(part))
    if completion is not None:
        said = {"role": "assistant", "content": completion["choices"][0]["message"]["content"] or ""}
        await client.step(
            f"{name}: Chat, sent again", lambda: complete(part, said, {"role": "user", "content": "?"})
        )


@asynccontextmanager
async def upstream(engine: str) -> AsyncIterator[tuple[str, str]]:
    """The specification of an engine, with the fake that it is in front of, and its model."""
    if engine == "simulated":
        yield "simulated:tokens_per_s=0,output_tokens=8", "simulated"
        return
    fake: Any
    if engine.startswith("vllm"):
        fake = FakeSeeingVllm()
        fake.scale_out = engine == "vllm"
    elif engine.startswith("sglang"):
        fake = FakeSglang()
        fake.sees, fake.checks_prompts = True, False
        fake.reads_pictures_beside = "ids" if engine == "sglang" else "text"
    else:
        fake = FakeChatServer() if engine == "chat" else FakeResponsesServer()
    await fake.start()
    try:
        for _ in range(200):
            fake.script(Say(("ok",)), Stop())
        more = {"chat": ",images=true", "responses": ""}.get(
            engine, f",tokenizer={seeing_directory()},context=200000"
        )
        kind = engine.partition("-")[0]
        yield f"{kind}:{fake.url}{more}", ""
    finally:
        await fake.close()


async def measure(engine: str, arguments: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        spec, model = await stack.enter_async_context(upstream(engine))
        log = folder / "held.jsonl"
        flags = [
            "--port",
            "0",
            "--log-level",
            "warning",
            "--engine",
            spec,
            "--store",
            f"sqlite:{folder}/store.db",
            *arguments.flags,
        ]
        serving = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "serve", str(log), str(arguments.least_ms)),
            *("1" if arguments.where else "0", *flags),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert serving.stdout is not None
            while True:
                line = (await serving.stdout.readline()).decode()
                if found := re.search(r"http://[^\s/]+/v1", line):
                    break
                if not line:
                    raise RuntimeError("the server has not started")
            http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)))
            client = Client(found.group(), http, log, arguments.only)
            if not model:
                model = (await client.call("GET", "/models"))["data"][0]["id"]
            print(f"{engine}, load {os.getloadavg()[0]:.1f}")
            for kind in kinds():
                if not arguments.kind or kind.name in arguments.kind:
                    await steps(client, kind, model)
        finally:
            serving.terminate()
            await serving.wait()


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        path, least_ms, profiles, *flags = sys.argv[2:]
        serve(path, float(least_ms), profiles == "1", flags)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--kind", nargs="*", default=[], help="pdf, scan, picture or pictures")
    parser.add_argument("--only", default="", help="print the steps that this pattern matches")
    parser.add_argument("--where", action="store_true", help="say which calls took the time")
    parser.add_argument("--least-ms", type=float, default=3.0)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of the server")
    arguments = parser.parse_args()
    for engine in arguments.engine:
        asyncio.run(measure(engine, arguments))


if __name__ == "__main__":
    main()
