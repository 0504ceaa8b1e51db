"""Long texts, whose number of tokens is unknown before they are tokenized."""

import asyncio

from tests.attack.limits import LARGE_EVENT_MS, MIB
from tests.attack.stage import Registry, Stage

attack = Registry("tokenizing")
_LONG = 5 * MIB


def _text(kind: str, length: int) -> str:
    unit = {
        "digits": "0123456789",
        "word": "a",
        "spaces": " ",
        "newlines": "\n",
        "signs": "﷽",
        "mixed": "aB3 \t,é😀",
    }
    return (unit[kind] * (length // len(unit[kind].encode()) + 1))[:length]


async def _too_long(stage: Stage, model: str, text: str, *, count: int = 1, field: str = "input") -> None:
    """Send a text that cannot fit, as a response and as a count; require that each is refused for its
    length."""
    body = {"model": model, "input": "go", field: text, "store": False}
    answers = await asyncio.gather(
        *(stage.post(body) for _ in range(count)),
        *(
            stage.post({"model": model, "input": "go", field: text}, "/responses/input_tokens")
            for _ in range(count)
        ),
    )
    for answer in answers[:count]:
        stage.refused(answer, (400,), code="context_length_exceeded")
    for answer in answers[count:]:
        stage.refused(answer, (400,), code="context_length_exceeded")


@attack(engine="tokens")
async def digits(stage: Stage) -> None:
    """Four requests and four counts with 5 MiB of digits are refused by their size in bytes."""
    await _too_long(stage, "simulated", _text("digits", _LONG), count=4)


@attack(engine="tokens", event_ms=LARGE_EVENT_MS)
async def one_word(stage: Stage) -> None:
    """5 MiB of one long word, and of nothing but spaces, are refused by their size in bytes."""
    for kind in ("word", "spaces", "newlines", "mixed"):
        await _too_long(stage, "simulated", _text(kind, _LONG))


@attack(engine="tokens")
async def long_instructions(stage: Stage) -> None:
    """5 MiB of instructions are refused by their size in bytes."""
    await _too_long(stage, "simulated", _text("digits", _LONG), field="instructions")


@attack(engine="tokens")
async def just_too_long(stage: Stage) -> None:
    """Twenty texts of 100 kB at once, some of which might fit, are answered or refused while other clients
    are served."""
    texts = [_text(kind, 100_000) for kind in ("digits", "word", "spaces", "mixed")] * 5
    for answer in await asyncio.gather(
        *(stage.post({"model": "simulated", "input": text, "store": False}) for text in texts)
    ):
        stage.answered(answer)


@attack(engine="tokens")
async def long_tools(stage: Stage) -> None:
    """Tools whose descriptions have 5 MiB are refused by their size in bytes."""
    tool = {"type": "function", "name": "tool", "description": _text("digits", _LONG), "parameters": {}}
    body = {"model": "simulated", "input": "go", "tools": [tool], "store": False}
    stage.refused(await stage.post(body), (400,))


@attack(engine="tokens")
async def truncated_by_the_server(stage: Stage) -> None:
    """1,500 messages that cannot fit, with `truncation: "auto"`, are answered or refused."""
    items = [{"role": "user", "content": _text("digits", 3000)} for _ in range(1500)]
    body = {"model": "simulated", "input": items, "truncation": "auto", "store": False}
    stage.answered(await stage.post(body))


@attack(engine="llama", peak_mib=768)
async def digits_on_llama(stage: Stage) -> None:
    """Four requests and four counts with 5 MiB of digits to the embedded model are refused at once."""
    await _too_long(stage, "llama", _text("digits", _LONG), count=4)


@attack(engine="llama", peak_mib=768, event_ms=LARGE_EVENT_MS)
async def one_word_on_llama(stage: Stage) -> None:
    """5 MiB of one long word, and of nothing but spaces, to the embedded model are refused."""
    for kind in ("word", "spaces", "mixed"):
        await _too_long(stage, "llama", _text(kind, _LONG))


@attack(engine="llama", peak_mib=768)
async def long_socket_turns_on_llama(stage: Stage) -> None:
    """Sixteen lanes of one WebSocket send 1 MiB of digits each: all are refused, and the socket stays
    open."""
    socket = await stage.websocket()
    for lane in range(16):
        await socket.create(model="llama", input=_text("digits", MIB), stream_id=f"lane-{lane}")
    async with asyncio.timeout(40):
        for _ in range(16):
            stage.refused(await socket.until("response.completed"), (400,), code="context_length_exceeded")
    socket.close()
