"""Long contexts: refused from their length, tokenized as far as they fit, few at once, tenants in turn."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slipring.core.generation import Job, Settings
from slipring.core.limits import Limits
from slipring.engines.tokens import token_answer
from slipring.engines.tokens.remote_vocabulary import ServerVocabulary, spelling_pattern, split_spellings
from slipring.engines.tokens.tokenizer_threads import FairThreadPool, TokenizerThreads
from slipring.errors import ContextLengthExceeded, InvalidRequest
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.dialect_renderer import FoldingRenderer
from slipring.prompts.tokenization.token_budget import BOUNDLESS, Room
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol.items import Item
from tests.engines.tokens.test_tokens import job
from tests.prompts.vocabulary import message, qwen2

LIMITS = Limits(max_tokenizing=2, max_unsplit_chars=100_000, counted_contexts=2)


def threads() -> TokenizerThreads:
    return TokenizerThreads(LIMITS)


class Watched(Vocabulary):
    """Qwen2's vocabulary, which keeps what it was given to encode."""

    def __init__(self) -> None:
        self.fingerprint = qwen2().fingerprint
        self.rooms: list[tuple[int, Room]] = []
        self.threads: set[str] = set()

    def encode(self, text: str, room: Room = BOUNDLESS) -> list[int]:
        self.rooms.append((len(text), room))
        self.threads.add(threading.current_thread().name)
        return qwen2().encode(text, room)

    def least_tokens(self, text: str) -> int:
        return qwen2().least_tokens(text)

    def control(self, token: str) -> int:
        return qwen2().control(token)

    def has_control(self, token: str) -> bool:
        return qwen2().has_control(token)

    def control_tokens(self) -> Any:
        return qwen2().control_tokens()

    def bytes_of(self, id: int) -> bytes:
        return qwen2().bytes_of(id)


def asking(*items: Item, **settings: Any) -> Job:
    return structs.replace(job(), input=items, settings=Settings(**settings))


def watched() -> tuple[Watched, FoldingRenderer]:
    vocabulary = Watched()
    return vocabulary, FoldingRenderer(ChatMl(), vocabulary)


async def test_what_cannot_fit_is_refused_without_being_tokenized() -> None:
    vocabulary, renderer = watched()
    text = " " * (128 * 1000)  # a token is 128 bytes at most
    with pytest.raises(ContextLengthExceeded) as refused:
        await token_answer.render(asking(message("user", text)), renderer, 999, threads())
    assert "at least 100" in refused.value.message
    assert max((length for length, _ in vocabulary.rooms), default=0) < 100
    with pytest.raises(ContextLengthExceeded):
        await token_answer.count(asking(message("user", text)), renderer, 499, threads())
    assert max((length for length, _ in vocabulary.rooms), default=0) < 100


async def test_a_text_is_tokenized_no_further_than_it_fits() -> None:
    vocabulary, renderer = watched()
    text = "7" * 150_000
    with pytest.raises(ContextLengthExceeded) as refused:
        await token_answer.render(asking(message("user", text)), renderer, 40_000, threads())
    assert "at least" in refused.value.message
    (room,) = (room for length, room in vocabulary.rooms if length == len(text))
    assert room.tokens <= 40_000
    assert room.unsplit_chars == 100_000


async def test_what_an_earlier_response_has_taken_is_no_room() -> None:
    _, renderer = watched()
    limits = threads()
    first = asking(message("user", "7" * 500))
    rendering = await token_answer.render(first, renderer, 1000, limits)
    held = rendering.prompt.total

    class Parent:
        position = rendering.context
        said: tuple[Item, ...] = ()

    fits = 999 - held - 20
    more = structs.replace(asking(message("user", "7" * fits)), parent=Parent())
    assert (await token_answer.render(more, renderer, 1000, limits)).fallback is None
    more = structs.replace(asking(message("user", "7" * 600)), parent=Parent())
    with pytest.raises(ContextLengthExceeded):
        await token_answer.render(more, renderer, 1000, limits)


async def test_a_context_that_fills_the_model_exactly_is_refused_with_its_exact_length() -> None:
    _, renderer = watched()
    asked = asking(message("user", "hello " * 3000))
    total = (await token_answer.render(asked, renderer, 10**6, threads())).prompt.total
    assert (await token_answer.render(asked, renderer, total + 1, threads())).prompt.total == total
    with pytest.raises(ContextLengthExceeded) as refused:
        await token_answer.render(asked, renderer, total, threads())
    assert f"resulted in {total} tokens" in refused.value.message


async def test_long_texts_are_not_tokenized_on_the_loop() -> None:
    vocabulary, renderer = watched()
    await token_answer.render(asking(message("user", "short")), renderer, 10**6, threads())
    assert vocabulary.threads == {threading.current_thread().name}
    vocabulary.threads.clear()
    await token_answer.render(asking(message("user", "long " * 10_000)), renderer, 10**6, threads())
    assert all(name.startswith("tokenize") for name in vocabulary.threads)


async def test_truncation_tokenizes_no_more_than_fits_at_each_step_of_its_search() -> None:
    vocabulary, renderer = watched()
    items = [message("user", f"{number} " + "x y " * 500) for number in range(200)]
    asked = asking(*items, truncation="auto")
    rendering = await token_answer.render(asked, renderer, 8000, threads())
    lengths = [length for length, _ in vocabulary.rooms if length > 1000]
    assert len(lengths) <= 9 * 8  # eight texts of 1,000 tokens, at each of nine steps
    assert rendering.prompt.total <= 6000
    assert rendering.dropped_items > 190
    kept = items[rendering.dropped_items :]
    assert rendering.context.ids() == renderer.render(asking(*kept)).context.ids()


async def test_truncation_cannot_help_a_last_item_that_is_too_long() -> None:
    _, renderer = watched()
    asked = asking(message("user", "a"), message("user", "7" * 50_000), truncation="auto")
    with pytest.raises(ContextLengthExceeded):
        await token_answer.render(asked, renderer, 8000, threads())


async def test_a_count_is_exact_up_to_some_contexts_and_refused_past_them() -> None:
    _, renderer = watched()
    asked = asking(message("user", "7" * 10_000))
    total = await token_answer.count(asked, renderer, 8000, threads())
    assert total == renderer.render(asked).prompt.total
    half = -(-total // 2)
    assert await token_answer.count(asked, renderer, half, threads()) == total
    with pytest.raises(ContextLengthExceeded) as refused:
        await token_answer.count(asked, renderer, half - 5, threads())
    assert f"maximum context length is {half - 5} tokens" in refused.value.message


async def test_a_count_ends_where_it_is_enough() -> None:
    _, renderer = watched()
    asked = asking(message("user", "7" * 200_000))
    told = await token_answer.count(asked, renderer, 10**6, threads(), enough=1000)
    assert 1000 <= told < 100_000
    # What is enough may be more than is ever counted.
    with pytest.raises(ContextLengthExceeded):
        await token_answer.count(asked, renderer, 1000, threads(), enough=10**6)
    assert (
        await token_answer.count(asking(message("user", "7" * 100)), renderer, 10**6, threads(), 1000) < 200
    )


async def test_a_run_that_cannot_be_split_is_refused_by_name() -> None:
    _, renderer = watched()
    with pytest.raises(InvalidRequest) as refused:
        await token_answer.render(asking(message("user", "a" * 100_001)), renderer, 10**6, threads())
    assert (refused.value.param, refused.value.code) == ("input", "invalid_value")
    await token_answer.render(asking(message("user", "a" * 100_000)), renderer, 10**6, threads())


class Asked(ServerVocabulary):
    """A vocabulary elsewhere: every character is a token."""

    def __init__(self) -> None:
        super().__init__("elsewhere", {"<|im_start|>": 1, "<|im_end|>": 2, "<|endoftext|>": 3})
        self.asked: list[int] = []

    def _pieces(self, text: str) -> list[str]:
        return [text]

    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        self.asked.append(len(text))
        return tuple(range(len(text)))

    def _ask_control(self, token: str) -> int | None:
        return None


async def test_a_server_is_not_asked_about_what_cannot_fit() -> None:
    vocabulary = Asked()
    renderer = FoldingRenderer(ChatMl(), vocabulary)
    with pytest.raises(ContextLengthExceeded):
        await token_answer.render(asking(message("user", "x" * 256 * 100)), renderer, 99, threads())
    with pytest.raises(InvalidRequest) as refused:
        await token_answer.render(asking(message("user", "x" * 100_001)), renderer, 10**6, threads())
    assert refused.value.param == "input"
    assert max(vocabulary.asked, default=0) < 100
    # After the text that is too much, no other is sent.
    items = [message("user", f"{number}" * 200) for number in range(1, 9)]
    with pytest.raises(ContextLengthExceeded):
        await token_answer.render(asking(*items), renderer, 500, threads())
    assert sum(length >= 200 for length in vocabulary.asked) <= 3


class Split(Asked):
    def _pieces(self, text: str) -> list[str]:
        return split_spellings(text, spelling_pattern(["<s>"]))


async def test_a_text_that_spells_very_many_control_tokens_is_not_asked_about() -> None:
    vocabulary = Split()
    assert len(vocabulary.encode("<s>" * 4095)) == 3 * 4095
    assert set(vocabulary.asked) == {1, 2, 3}
    with pytest.raises(InvalidRequest) as refused:
        vocabulary.encode("<s>" * 4096)
    assert refused.value.param == "input"


@given(st.lists(st.sampled_from(["<s>", "<", "s", "<<s>", "x"]), max_size=40).map("".join), st.integers(1, 9))
def test_a_text_that_is_searched_in_steps_is_taken_apart_as_one_that_is_not(text: str, step: int) -> None:
    starts = spelling_pattern(["<s>", "s>x"])
    whole = split_spellings(text, starts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("slipring.engines.tokens.remote_vocabulary._STEP_CHARS", step)
        assert split_spellings(text, starts) == whole


class Blocked:
    """Pieces of work that go on until they are let go."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._gates: dict[str, threading.Event] = {}

    def work(self, name: str) -> Callable[[], str]:
        gate = self._gates[name] = threading.Event()

        def run() -> str:
            self._loop.call_soon_threadsafe(self.begun.put_nowait, name)
            assert gate.wait(60)
            return name

        return run

    def let_go(self, name: str) -> None:
        self._gates[name].set()


async def test_so_much_is_done_at_once_and_tenants_take_turns() -> None:
    crew, blocked = FairThreadPool("test", 2), Blocked()
    names = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("a", "a4"), ("b", "b1")]
    running = [asyncio.create_task(crew.run(tenant, blocked.work(name))) for tenant, name in names]
    assert {await blocked.begun.get(), await blocked.begun.get()} == {"a1", "a2"}
    assert blocked.begun.empty()
    order = []
    for name in ("a1", "a2", "a3", "b1"):
        blocked.let_go(name)
        if len(order) < 3:
            order.append(await blocked.begun.get())
    # b came last and waits for one of a's, not for all.
    assert order == ["a3", "b1", "a4"]
    blocked.let_go("a4")
    assert await asyncio.gather(*running) == [name for _, name in names]


async def test_whoever_gives_up_does_not_make_room_before_the_work_is_done() -> None:
    crew, blocked = FairThreadPool("test", 1), Blocked()
    first = asyncio.create_task(crew.run("a", blocked.work("first")))
    assert await blocked.begun.get() == "first"
    waiting = asyncio.create_task(crew.run("b", blocked.work("waiting")))
    second = asyncio.create_task(crew.run("c", blocked.work("second")))
    for task in (first, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert blocked.begun.empty()
    blocked.let_go("first")
    assert await blocked.begun.get() == "second"
    blocked.let_go("second")
    assert await second == "second"


async def test_work_that_fails_gives_its_place_back() -> None:
    crew = FairThreadPool("test", 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await crew.run("a", lambda: 1 / 0)
    assert await crew.run("a", lambda: 1) == 1


async def test_little_is_prepared_at_once_and_much_in_a_thread() -> None:
    tokenizing = threads()
    here = threading.current_thread().name
    name = lambda: threading.current_thread().name  # noqa: E731
    assert await tokenizing.prepare(asking(message("user", "x")), name) == here
    assert await tokenizing.prepare(asking(message("user", "x" * 70_000)), name) != here
