"""How far a token goes: the modules and the Python calls between the bytes of an engine's server and the
frame that the client is sent, the modules of a whole stored turn, and the calls for an item that is sent
again. Kept as ceilings, so that they cannot grow unseen.

Counted by a profile function, which sees every call of a Python function of slipring, comprehensions and
resumed coroutines included: a coroutine that waits on behalf of another one, such as the handler of the
socket, counts each time although it does nothing. What the event loop, aiohttp, msgspec and other libraries
do does not count.

- A token: what a turn of 60 words calls more than one of 20, divided by 40. Each word arrives in a read of
  its own.
- A stored turn: all modules of which anything was called, in each of three turns that continue a stored
  response over a WebSocket: from the bytes of the create to the last event, with what follows it (the cache,
  the log, metrics, the live view), and with the row that the store writes. A module counts once, whether it
  does the turn's main work or answers that it has nothing to do. Modules that are only imported do not.
- A call and its output in a history that is sent again and recognised: what a turn after 60 of them calls
  more than one after 20, divided by 40. Loops that call nothing do not count.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from aiohttp import web

import slipring
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.server import FakeServer, Say, Stop, in_front_of
from tests.engines.fakes.vllm import FakeVllm
from tests.harness import Socket

SOURCE = str(Path(slipring.__file__).parent)
WORDS = tuple(f" word{number}" for number in range(60))
FEW, MANY = 20, 60
"""Words of two answers. What the longer one takes more is what the words take."""
OF_FAKES = ("prompts/tokenization/tokenizer", "prompts/rendering")
"""Modules that the fake servers call as well, to encode what they send."""


class Ceiling(NamedTuple):
    """The most that is allowed. A change that lowers a figure lowers the ceiling."""

    token_modules: int
    token_calls: int
    turn_modules: int
    resent_calls: int


CEILINGS = {"vllm": Ceiling(8, 14, 84, 11), "chat": Ceiling(6, 13, 68, 11)}


class Calls:
    """Calls of functions of slipring, by module and name. Resumed coroutines count as called."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            self.made[f"{code.co_filename[len(SOURCE) + 1 : -3]}:{code.co_qualname}"] += 1

    @property
    def modules(self) -> set[str]:
        return {name.partition(":")[0] for name in self.made}


@contextmanager
def watched(calls: Calls) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(calls.see)
    try:
        yield
    finally:
        sys.setprofile(before)


FAKES: dict[str, Callable[[], FakeServer]] = {"vllm": FakeVllm, "chat": FakeChatServer}


@asynccontextmanager
async def without_timers(kind: str) -> AsyncIterator[tuple[FakeServer, Socket]]:
    """A fake server, and a client of the server in front of it.

    On a busy machine a turn may take seconds: what a server does four times a second is not part of one, nor
    is what the garbage collector calls. The clock of the loop stands still, so that no timer is due."""
    loop = asyncio.get_running_loop()
    patch = pytest.MonkeyPatch()
    patch.setattr(loop, "time", partial(float, loop.time()))
    gc.disable()
    try:
        async with in_front_of(FAKES[kind]()) as (fake, served), served.connect() as socket:
            yield fake, socket
            patch.undo()  # what stops has time limits
    finally:
        patch.undo()
        gc.enable()


@pytest.fixture(autouse=True)
def one_token_in_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    write = web.StreamResponse.write

    async def written_alone(self: web.StreamResponse, data: bytes) -> None:
        await write(self, data)
        for _ in range(10):
            await asyncio.sleep(0)

    monkeypatch.setattr(web.StreamResponse, "write", written_alone)


async def calls_of_turn(fake: FakeServer, socket: Socket, words: int) -> Calls:
    """The calls of a turn whose answer has so many words, each in a read of its own."""
    calls = Calls()
    fake.script(Say(WORDS[:words]), Stop())
    with watched(calls):
        await socket.response(input="hello")
    return calls


@pytest.mark.parametrize("kind", FAKES)
async def test_a_token_takes_few_calls_in_few_modules(kind: str) -> None:
    async with without_timers(kind) as (fake, socket):
        await socket.response(input="hello")  # everything that is made once has been made
        few, many = [await calls_of_turn(fake, socket, words) for words in (FEW, MANY)]
    count = MANY - FEW
    made = {
        name: round(more / count)
        for name, more in (many.made - few.made).items()
        if more > count // 2 and not name.startswith(OF_FAKES)
    }
    modules = {name.partition(":")[0] for name in made}
    assert len(modules) <= CEILINGS[kind].token_modules, sorted(modules)
    assert sum(made.values()) <= CEILINGS[kind].token_calls, sorted(made)


@pytest.mark.parametrize("kind", FAKES)
async def test_a_stored_turn_passes_few_modules(kind: str) -> None:
    async with without_timers(kind) as (fake, socket):
        turns = []
        response = await socket.response(input="hello", store=True)
        for _ in range(3):
            fake.script(Say(WORDS[:3]), Stop())
            calls = Calls()
            with watched(calls):
                response = await socket.response(
                    input="and?", previous_response_id=response["id"], store=True
                )
            turns.append(calls.modules)
    modules = set.intersection(*turns)
    assert len(modules) <= CEILINGS[kind].turn_modules, sorted(modules)


def exchange(number: int) -> list[dict[str, str]]:
    """A call, and its output."""
    call_id = f"call_{number}"
    call = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": call_id, "output": f"found {number}"}]


async def calls_of_resent_history(fake: FakeServer, socket: Socket, exchanges: int) -> Calls:
    """The calls of a turn whose history was sent before, with so many exchanges."""
    said = [{"role": "user", "content": f"look {exchanges} times"}]
    history = said + [item for number in range(exchanges) for item in exchange(number)]
    calls = Calls()
    fake.script(Say(WORDS[:3]), Stop())
    response = await socket.response(input=history, store=False)
    fake.script(Say(WORDS[:3]), Stop())
    with watched(calls):
        again = [*history, *response["output"], {"role": "user", "content": "go on"}]
        await socket.response(input=again, store=False)
    return calls


@pytest.mark.parametrize("kind", FAKES)
async def test_an_item_that_is_sent_again_takes_few_calls(kind: str) -> None:
    async with without_timers(kind) as (fake, socket):
        await calls_of_resent_history(fake, socket, 1)
        few, many = [await calls_of_resent_history(fake, socket, count) for count in (FEW, MANY)]
    count = MANY - FEW
    made = {
        name: round(more / count)
        for name, more in (many.made - few.made).items()
        if more > count // 2 and not name.startswith(OF_FAKES)
    }
    assert sum(made.values()) <= CEILINGS[kind].resent_calls, sorted(made.items())
