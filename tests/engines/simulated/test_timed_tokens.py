"""Tokens at the times of a pace, emitted from callbacks of the event loop."""

import asyncio
from collections.abc import Awaitable

import pytest

from slipring.core.generation import Delta, Text
from slipring.engines.simulated.pace import Pace, Ticks, TimedTokens

WORDS = [f"word{number} " for number in range(100)]


class Words:
    """Tokens of one word each; every fifth has no delta."""

    def __init__(self) -> None:
        self.taken = 0

    def has_next(self) -> bool:
        return self.taken < len(WORDS)

    def take(self, count: int) -> list[Delta]:
        first, self.taken = self.taken, min(self.taken + count, len(WORDS))
        return [Text(WORDS[number]) for number in range(first, self.taken) if number % 5]


TEXT = "".join(word for number, word in enumerate(WORDS) if number % 5)


class Client:
    """Receives what is emitted."""

    def __init__(self) -> None:
        self.text = ""
        self.emitted_in: set[asyncio.Task[object] | None] = set()

    def emit(self, deltas: list[Delta]) -> Awaitable[None] | None:
        assert deltas
        self.text += "".join(delta.text for delta in deltas if isinstance(delta, Text))
        self.emitted_in.add(asyncio.current_task())
        return None


async def play(tokens: Words, rate: float, client: Client) -> None:
    await TimedTokens(tokens, Pace(rate, Ticks()), client.emit).run()


@pytest.mark.parametrize("rate", [0, 2000])
async def test_tokens_are_emitted_in_order_and_from_no_task(rate: float) -> None:
    client = Client()
    await play(Words(), rate, client)
    assert client.text == TEXT
    assert client.emitted_in == {None}


async def test_a_client_that_does_not_keep_up_is_waited_for() -> None:
    class Slow(Client):
        def __init__(self) -> None:
            super().__init__()
            self.reads = asyncio.Semaphore(0)
            self.waited = 0

        def emit(self, deltas: list[Delta]) -> Awaitable[None] | None:
            super().emit(deltas)
            return self._read()

        async def _read(self) -> None:
            self.waited += 1
            await self.reads.acquire()

    client, tokens = Slow(), Words()
    playing = asyncio.create_task(play(tokens, 0, client))
    while client.waited < 1:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    taken = tokens.taken
    for _ in range(50):
        await asyncio.sleep(0)
    assert tokens.taken == taken, "nothing is taken while the client does not read"
    for _ in WORDS:
        client.reads.release()
    await playing
    assert client.text == TEXT


async def test_what_emitting_raises_ends_the_answer() -> None:
    class Gone(Client):
        def emit(self, deltas: list[Delta]) -> Awaitable[None] | None:
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await play(Words(), 0, Gone())


async def test_nothing_is_emitted_once_the_answer_is_cancelled() -> None:
    client, tokens = Client(), Words()
    playing = asyncio.create_task(play(tokens, 0, client))
    while not client.text:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    taken = tokens.taken
    for _ in range(10):
        await asyncio.sleep(0)
    assert tokens.taken == taken < len(WORDS)
