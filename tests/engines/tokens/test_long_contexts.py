"""Long contexts: rejected by their length where possible, and tokenized no further than they fit."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec import structs

from slipring.base.errors import ContextLengthExceeded, InvalidRequest
from slipring.core.generation import Job, Prefill, Settings
from slipring.core.limits import Limits
from slipring.engines.tokens import job_rendering
from slipring.engines.tokens.tokenizer_threads import TokenizerThreads
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol.items.items import Item
from tests.engines.tokens.test_remote_vocabulary import CharacterVocabulary
from tests.engines.tokens.test_token_answer import job
from tests.prompts.test_rendering import after
from tests.prompts.vocabulary import item, message, of_format, smollm2

LIMITS = Limits(max_tokenizing=2, max_unsplit_chars=100_000, counted_contexts=2)


def threads() -> TokenizerThreads:
    return TokenizerThreads(LIMITS)


class RecordingVocabulary(Vocabulary):
    """SmolLM2's vocabulary. Records the lengths, budgets and threads of its ``encode`` calls."""

    def __init__(self) -> None:
        self.fingerprint = smollm2().fingerprint
        self.budgets: list[tuple[int, TokenBudget]] = []
        self.threads: set[str] = set()

    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]:
        self.budgets.append((len(text), budget))
        self.threads.add(threading.current_thread().name)
        return smollm2().encode(text, budget)

    def least_tokens(self, text: str) -> int:
        return smollm2().least_tokens(text)

    def control(self, token: str) -> int:
        return smollm2().control(token)

    def has_control(self, token: str) -> bool:
        return smollm2().has_control(token)

    def control_tokens(self) -> Any:
        return smollm2().control_tokens()

    def bytes_of(self, id: int) -> bytes:
        return smollm2().bytes_of(id)


def job_with(*items: Item, **settings: Any) -> Job:
    return structs.replace(job(), input=items, settings=Settings(**settings))


def recording() -> tuple[RecordingVocabulary, TemplateRenderer]:
    vocabulary = RecordingVocabulary()
    return vocabulary, of_format("chatml", vocabulary)


async def test_a_text_that_is_too_long_whatever_its_tokens_is_rejected_untokenized() -> None:
    vocabulary, renderer = recording()
    text = " " * (81 * 1000)  # a token is 81 bytes at most
    with pytest.raises(ContextLengthExceeded) as error:
        await job_rendering.render(job_with(message("user", text)), renderer, 999, threads())
    assert "at least 100" in error.value.message
    assert max((length for length, _ in vocabulary.budgets), default=0) < 100
    with pytest.raises(ContextLengthExceeded):
        await job_rendering.count(job_with(message("user", text)), renderer, 499, threads())
    assert max((length for length, _ in vocabulary.budgets), default=0) < 100


async def test_a_text_is_tokenized_no_further_than_it_fits() -> None:
    vocabulary, renderer = recording()
    text = "7" * 150_000
    with pytest.raises(ContextLengthExceeded) as error:
        await job_rendering.render(job_with(message("user", text)), renderer, 40_000, threads())
    assert "at least" in error.value.message
    (room,) = (room for length, room in vocabulary.budgets if length >= len(text))
    assert room.tokens <= 40_000
    assert room.unsplit_chars == 100_000


async def test_tokens_of_earlier_responses_count_against_the_context() -> None:
    _, renderer = recording()
    limits = threads()
    first = job_with(message("user", "7" * 500))
    rendering = await job_rendering.render(first, renderer, 1000, limits)
    used = rendering.prompt.total

    class Parent:
        position = rendering.context
        answer: tuple[Item, ...] = ()

    fits = 999 - used - 20
    more = structs.replace(job_with(message("user", "7" * fits)), parent=Parent())
    assert (await job_rendering.render(more, renderer, 1000, limits)).fallback is None
    more = structs.replace(job_with(message("user", "7" * 600)), parent=Parent())
    with pytest.raises(ContextLengthExceeded):
        await job_rendering.render(more, renderer, 1000, limits)


async def test_a_context_that_leaves_no_room_for_an_answer_is_rejected_with_its_exact_length() -> None:
    _, renderer = recording()
    request = job_with(message("user", "hello " * 3000))
    total = (await job_rendering.render(request, renderer, 10**6, threads())).prompt.total
    assert (await job_rendering.render(request, renderer, total + 1, threads())).prompt.total == total
    with pytest.raises(ContextLengthExceeded) as error:
        await job_rendering.render(request, renderer, total, threads())
    assert f"resulted in {total} tokens" in error.value.message


async def test_long_texts_are_not_tokenized_on_the_event_loop() -> None:
    vocabulary, renderer = recording()
    await job_rendering.render(job_with(message("user", "short")), renderer, 10**6, threads())
    assert vocabulary.threads == {threading.current_thread().name}
    vocabulary.threads.clear()
    await job_rendering.render(job_with(message("user", "long " * 10_000)), renderer, 10**6, threads())
    assert all(name.startswith("tokenize") for name in vocabulary.threads)


async def test_truncation_tokenizes_no_more_than_fits_at_each_step_of_its_search() -> None:
    vocabulary, renderer = recording()
    items = [message("user", f"{number} " + "x y " * 500) for number in range(200)]
    request = job_with(*items, truncation="auto")
    rendering = await job_rendering.render(request, renderer, 8000, threads())
    lengths = [length for length, _ in vocabulary.budgets if length > 1000]
    assert len(lengths) <= 9 * 8  # eight texts of 1,000 tokens, at each of nine steps
    assert rendering.prompt.total <= 6000
    assert rendering.dropped_items > 190
    kept = items[rendering.dropped_items :]
    assert rendering.context.ids() == renderer.render(job_with(*kept)).context.ids()


async def test_truncation_cannot_help_a_last_item_that_is_too_long() -> None:
    _, renderer = recording()
    request = job_with(message("user", "a"), message("user", "7" * 50_000), truncation="auto")
    with pytest.raises(ContextLengthExceeded):
        await job_rendering.render(request, renderer, 8000, threads())


async def test_a_count_is_exact_up_to_counted_contexts_and_rejected_past_them() -> None:
    _, renderer = recording()
    request = job_with(message("user", "7" * 10_000))
    total = await job_rendering.count(request, renderer, 8000, threads())
    assert total == renderer.render(request).prompt.total
    half = -(-total // 2)
    assert await job_rendering.count(request, renderer, half, threads()) == total
    with pytest.raises(ContextLengthExceeded) as error:
        await job_rendering.count(request, renderer, half - 5, threads())
    assert f"maximum context length is {half - 5} tokens" in error.value.message


async def test_a_count_stops_once_it_is_enough() -> None:
    _, renderer = recording()
    request = job_with(message("user", "7" * 200_000))
    counted = await job_rendering.count(request, renderer, 10**6, threads(), enough=1000)
    assert 1000 <= counted < 100_000
    # ``enough`` may exceed the limit of counting.
    with pytest.raises(ContextLengthExceeded):
        await job_rendering.count(request, renderer, 1000, threads(), enough=10**6)
    assert (
        await job_rendering.count(job_with(message("user", "7" * 100)), renderer, 10**6, threads(), 1000)
        < 200
    )


async def test_a_run_of_characters_that_cannot_be_split_is_rejected_with_its_field() -> None:
    _, renderer = recording()
    with pytest.raises(InvalidRequest) as error:
        await job_rendering.render(job_with(message("user", "a" * 100_001)), renderer, 10**6, threads())
    assert (error.value.param, error.value.code) == ("input", "invalid_value")
    await job_rendering.render(job_with(message("user", "a" * 99_990)), renderer, 10**6, threads())


async def test_no_request_is_made_for_a_text_that_cannot_fit() -> None:
    vocabulary = CharacterVocabulary()
    renderer = of_format("chatml", vocabulary)
    with pytest.raises(ContextLengthExceeded):
        await job_rendering.render(job_with(message("user", "x" * 256 * 100)), renderer, 99, threads())
    with pytest.raises(InvalidRequest) as error:
        await job_rendering.render(job_with(message("user", "x" * 100_001)), renderer, 10**6, threads())
    assert error.value.param == "input"
    assert max(vocabulary.requests, default=0) < 100
    # No text is sent after the one that exceeds the context.
    items = [message("user", f"{number}" * 200) for number in range(1, 9)]
    with pytest.raises(ContextLengthExceeded):
        await job_rendering.render(job_with(*items), renderer, 500, threads())
    assert sum(length >= 200 for length in vocabulary.requests) <= 3


async def test_an_answer_is_tokenized_before_the_prefills_that_wait() -> None:
    _, renderer = recording()
    tokenizing, order = threads(), list[str]()
    parent = after(job(), renderer.render(job()))
    output = item("function_call_output", call_id="c1", output="line of output\n" * 4000)
    prefill = Prefill(structs.replace(job(), parent=parent, input=(output,), generate=False), "output")

    async def prefilled() -> None:
        await job_rendering.foresee(prefill, renderer, 10**6, tokenizing)
        order.append("prefill")

    async def answered() -> None:
        await job_rendering.render(job_with(message("user", "long " * 10_000)), renderer, 10**6, tokenizing)
        order.append("answer")

    prefills = [asyncio.create_task(prefilled()) for _ in range(4)]
    await asyncio.gather(*prefills, asyncio.create_task(answered()))
    assert "answer" in order[:2]
