"""Attacks by PDF files: bombs, files that lie, floods, histories that are sent again by every API, and looks
at what other tenants have sent."""

import asyncio
import base64
import json
import time
import zlib
from collections.abc import Callable
from statistics import median

from tests.attack.limits import LARGE_EVENT_MS, MIB
from tests.attack.server import VICTIM_KEY
from tests.attack.sockets import GONE, Answer, Json, post
from tests.attack.stage import Registry, Stage
from tests.pdfs import pdf, pdf_of, pdf_url

attack = Registry("pictures", engine="seeing")
_FIELD = r"input\[0\]\.content\[1\]\.file_data$"
_ROLLOUT = "OpenAI-Beta: slipring_rollout=v1"
_WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
_ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
_MOST_PAGES = 100
_PAIRS = 7
_LONG_S, _BEGUN_S = 120.0, 0.5
_WORDS_OF_A_PAGE = "of a report that takes a while to draw " * 4


def _part(data: bytes) -> Json:
    return {"type": "input_file", "filename": "a.pdf", "file_data": pdf_url(data)}


def _message(*parts: Json) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "read"}, *parts]}


def _create(*files: bytes, **fields: object) -> Json:
    return {"model": "seeing", "input": [_message(*map(_part, files))], "max_output_tokens": 4, **fields}


def _block(data: bytes) -> Json:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source}


def _chat_part(data: bytes) -> Json:
    return {"type": "file", "file": {"file_data": pdf_url(data), "filename": "a.pdf"}}


def _asked(data: bytes, part: Callable[[bytes], Json]) -> Json:
    """A message of Messages or of Chat Completions."""
    return {"role": "user", "content": [{"type": "text", "text": "read"}, part(data)]}


_OTHER_APIS: dict[str, Callable[[bytes], Json]] = {"/messages": _block, "/chat/completions": _chat_part}


def _with_content(content: str, *more: str, resources: str = "") -> bytes:
    """A file of one page that draws this."""
    page = (
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        f" /Resources << {resources} >> >>"
    )
    pages = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return pdf_of(["<< /Type /Catalog /Pages 2 0 R >>", pages, page, content, *more])


def _stream(data: str, entries: str = "") -> str:
    return f"<< /Length {len(data)} {entries} >>\nstream\n{data}\nendstream"


def _drawn_twice(depth: int = 24) -> bytes:
    """A form that draws itself twice, which draws itself twice, …"""
    form = "/Type /XObject /Subtype /Form /BBox [0 0 600 700]"
    forms = [
        _stream("/A Do /A Do", f"{form} /Resources << /XObject << /A {6 + number} 0 R >> >>")
        for number in range(depth)
    ]
    last = _stream("0 0 600 700 re f", form)
    return _with_content(_stream("/A Do"), *forms, last, resources="/XObject << /A 5 0 R >>")


def _inflated(size: int = 1024 * MIB) -> bytes:
    """A page of spaces that is deflated twice: a gigabyte in a few kilobytes."""
    packer = zlib.compressobj(9)
    once = b"".join(packer.compress(b" " * MIB) for _ in range(size // MIB)) + packer.flush()
    coded = zlib.compress(once, 9).hex() + ">"
    return _with_content(_stream(coded, "/Filter [/ASCIIHexDecode /FlateDecode /FlateDecode]"))


def _large_picture(side: int = 60_000) -> bytes:
    entries = f"/Type /XObject /Subtype /Image /Width {side} /Height {side} /ColorSpace /DeviceRGB"
    image = _stream("00>", f"{entries} /BitsPerComponent 8 /Filter /ASCIIHexDecode")
    return _with_content(_stream("600 0 0 700 0 0 cm /A Do"), image, resources="/XObject << /A 5 0 R >>")


def _own_parent() -> bytes:
    """Pages that are pages of themselves."""
    return pdf_of(["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 90 >>"])


def _many_objects(count: int = 60_000) -> bytes:
    return pdf_of(
        ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [] /Count 0 >>", *["[]"] * count]
    )


def _report(pages: int, seed: int) -> bytes:
    return pdf(*(f"{seed} {number} {_WORDS_OF_A_PAGE}" for number in range(pages)))


@attack()
async def untrue_documents(stage: Stage) -> None:
    """Files that are cut off, are no PDF, or have more pages than they may are refused by their field, by
    every API, and others are read afterwards."""
    whole = pdf(*"abc")
    wrong = (whole[: stage.random.randrange(20, 300)], b"%PDF-1.4 nothing", pdf(*["x"] * (_MOST_PAGES + 1)))
    for data in wrong:
        stage.refused(await stage.post(_create(data)), (400,), param=_FIELD)
        for path, part in _OTHER_APIS.items():
            body = {"model": "seeing", "max_tokens": 4, "messages": [_asked(data, part)]}
            stage.refused(await stage.post(body, path), (400,))
    served = await stage.post(_create(whole))
    stage.check(served is not None and served.status == 200, f"refused: {served and served.body[:300]!r}")


@attack(limits={"document_timeout_s": 1}, peak_mib=1024)
async def document_bombs(stage: Stage) -> None:
    """Small PDF files that take long, or much memory, to read are refused by their field, or read within the
    limits: others are served meanwhile, and read their own documents."""
    bombs = {
        "forms that draw themselves": _drawn_twice(),
        "a gigabyte, deflated twice": _inflated(),
        "a picture of 60,000 pixels a side": _large_picture(),
        "pages of themselves": _own_parent(),
        "60,000 objects": _many_objects(),
        "a page of any size": pdf("x", box="0 0 9e30 9e30"),
    }
    answers = await asyncio.gather(*(stage.post(_create(data)) for data in bombs.values()))
    for name, answer in zip(bombs, answers, strict=True):
        stage.answered(answer)
        stage.note(f"{name}: {answer and answer.status}")
    stage.refused(answers[0], (400,), param=_FIELD)
    neighbour = await stage.post(_create(pdf("mine")), key=VICTIM_KEY)
    stage.check(neighbour is not None and neighbour.status == 200, "another tenant's document is not read")


@attack(event_ms=LARGE_EVENT_MS, peak_mib=1024)
async def many_pages(stage: Stage) -> None:
    """Documents of a hundred pages from four connections at once: each is read or refused, and a document of
    another tenant does not wait for all of them. More pages than a context may have pictures are refused."""

    async def read(*files: bytes) -> Answer | None:
        body = json.dumps(_create(*files)).encode()
        return await stage.exchange(post("/responses", body, stage.key), within_s=_LONG_S)

    reading = [asyncio.create_task(read(_report(_MOST_PAGES, seed))) for seed in range(4)]
    await asyncio.sleep(_BEGUN_S)
    neighbour = await stage.post(_create(pdf("mine")), key=VICTIM_KEY)
    stage.check(neighbour is not None and neighbour.status == 200, f"another's: {_shown(neighbour)}")
    stage.check(not all(each.done() for each in reading), "another tenant's document has waited for all")
    for answer in await asyncio.gather(*reading):
        stage.answered(answer)
    stage.refused(await read(_report(60, 8), _report(60, 9)), (400,), param="input")
    stage.refused(await read(*(pdf(str(number)) for number in range(101))), (400,))


@attack(event_ms=LARGE_EVENT_MS, peak_mib=768)
async def resent_documents(stage: Stage) -> None:
    """Histories with a document in every turn, which are sent again with every turn: by three APIs at once,
    each turn is answered."""

    async def responses() -> None:
        history: list[Json] = []
        for turn in range(6):
            history.append(_message(_part(_report(8, turn))))
            answer = await stage.post({"model": "seeing", "input": history, "max_output_tokens": 4})
            stage.check(answer is not None and answer.status == 200, f"responses, {turn}: {_shown(answer)}")
            if answer is None or answer.status != 200:
                return
            history += json.loads(answer.body)["output"]

    async def others(path: str, part: Callable[[bytes], Json]) -> None:
        messages: list[Json] = []
        for turn in range(6):
            messages.append(_asked(_report(8, 10 + turn), part))
            body = {"model": "seeing", "max_tokens": 4, "messages": messages}
            answer = await stage.post(body, path)
            stage.check(answer is not None and answer.status == 200, f"{path}, {turn}: {_shown(answer)}")
            messages.append({"role": "assistant", "content": "ok"})

    await asyncio.gather(responses(), *(others(*each) for each in _OTHER_APIS.items()))


@attack()
async def documents_of_others(stage: Stage) -> None:
    """A document that another tenant has sent takes this one as long as one that nobody has sent, and what
    another has stored is not found."""
    own: list[float] = []
    unknown: list[float] = []
    anothers: list[float] = []

    async def timed(data: bytes) -> float:
        begun = time.perf_counter()
        answer = await stage.post(_create(data))
        stage.check(answer is not None and answer.status == 200, f"refused: {_shown(answer)}")
        return time.perf_counter() - begun

    for number in range(_PAIRS):
        known, new = _report(20, 100 + number), _report(20, 200 + number)
        theirs = await stage.post(_create(known), key=VICTIM_KEY)
        pair = [(anothers, known), (unknown, new)]
        stage.random.shuffle(pair)
        for times, data in pair:
            times.append(await timed(data))
        own.append(await timed(new))
        if theirs is not None and theirs.status == 200:
            found = json.loads(theirs.body)["id"]
            stage.refused(await stage.get(f"/responses/{found}/input_items"), (404,))
    stage.note(", ".join(f"{1000 * median(times):.0f}" for times in (own, anothers, unknown)) + " ms")
    # One that it has sent itself shows that a hit would be seen.
    stage.check(median(own) < 0.6 * median(unknown), "documents that were sent again are read again")
    stage.check(median(anothers) > 0.6 * median(unknown), "another tenant's documents take less time")


@attack()
async def documents_in_appends(stage: Stage) -> None:
    """Documents that are appended to a rollout are refused by name, and the rollout goes on with what its
    client appends next; its own document and those of a steer are read."""
    socket = await stage.websocket(_ROLLOUT)
    refusals = 0
    try:
        async with asyncio.timeout(60):
            for number in range(6):
                await socket.create(
                    model="seeing",
                    input=[_message(_part(_report(2, 300 + number)))],
                    tools=[_WEATHER],
                    rollout=True,
                    store=False,
                )
                done = await socket.until("response.done", *_ENDS)
                stage.check(done["type"] == "response.done", f"{number}: {json.dumps(done)[:300]}")
                if done["type"] != "response.done":
                    return
                call = {"type": "function_call_output", "call_id": done["required_input"][0]["call_id"]}
                for output in ([_part(_report(4, number))], [_part(_drawn_twice())]):
                    await socket.send_event(
                        type="response.append",
                        response_id=done["response_id"],
                        input=[{**call, "output": output}],
                    )
                    failed = await socket.until("response.append.failed", *_ENDS)
                    refusals += failed["type"] == "response.append.failed"
                await socket.send_event(
                    type="response.append",
                    response_id=done["response_id"],
                    input=[{**call, "output": "sunny"}],
                )
                end = await socket.until(*_ENDS)
                stage.check(end["type"] == "response.completed", f"{number}: {json.dumps(end)[:300]}")
    except GONE as error:
        stage.faults.append(f"closed: {type(error).__name__}")
    finally:
        socket.reset()
        stage.note(f"{refusals} refused")


@attack(event_ms=LARGE_EVENT_MS, flags=("--workers", "2"), limits={"document_timeout_s": 1}, peak_mib=1536)
async def documents_and_workers(stage: Stage) -> None:
    """Two workers get documents, bombs among them, from a dozen connections at once: each is answered, and a
    chain with a document goes on whichever worker its next turn gets."""
    first = await stage.stored(_create(_report(3, 50)))
    bomb = _drawn_twice()
    files = [bomb if number % 4 == 0 else _report(10, 60 + number) for number in range(12)]
    for number, answer in enumerate(await asyncio.gather(*(stage.post(_create(data)) for data in files))):
        stage.answered(answer)
        if files[number] is bomb:
            stage.refused(answer, (400, 429, 503))
    for number in range(6):
        body = {"model": "seeing", "input": "and?", "previous_response_id": first, "max_output_tokens": 4}
        answer = await stage.post(body)
        stage.check(answer is not None and answer.status == 200, f"turn {number}: {_shown(answer)}")
        if answer is not None and answer.status == 200:
            first = json.loads(answer.body)["id"]


def _shown(answer: Answer | None) -> str:
    return "nothing" if answer is None else f"{answer.status} {answer.body[:300]!r}"
