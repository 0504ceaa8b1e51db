"""Answers of the llama engine from hand-made chunks: ids, words, counts, and how they end."""

from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import ServerError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    Capabilities,
    Delta,
    Finished,
    Job,
    Model,
    Settings,
    Text,
)
from slipring.engines.llama.answer import LlamaAnswer
from slipring.engines.llama.api import Chunk, Probability, Progress, Timings
from slipring.prompts.rendering import Rendered
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol import wire
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.harness import WEATHER
from tests.prompts.vocabulary import message, of_format, renderer, small_metadata

RENDERER = renderer("chatml in small")
VOCABULARY = RENDERER.vocabulary
END = VOCABULARY.control("<|im_end|>")
MODEL = Model(name="m", owner="tests", capabilities=Capabilities())


class Elsewhere(Tokenizer):
    """A vocabulary of which only the marks are known here."""

    is_local = False

    def spell(self, *_: object) -> list[int] | None:
        return None


ELSEWHERE = of_format("chatml", Elsewhere.from_gguf(small_metadata()))


NO_TOOLS = Offer()


class Stream:
    """An answer, and the engine that sends its chunks."""

    def __init__(
        self,
        limit: int = 100,
        *,
        generate: bool = True,
        by: TemplateRenderer = RENDERER,
        offer: Offer = NO_TOOLS,
        trusted: bool = False,
    ) -> None:
        job = Job(
            response_id="r",
            tenant="t",
            model=MODEL,
            head=Head(),
            parent=None,
            input=(message("user", "Hi"),),
            offer=offer,
            settings=Settings(),
            generate=generate,
        )
        self.rendering = by.render(job)
        self.answer = LlamaAnswer(job, self.rendering, by, limit, trusted=trusted)
        self.said = 0
        self.deltas: list[Delta] = []

    def say(self, text: str, ids: list[int] | None = None, *, hidden: int = 0, **fields: Any) -> "Stream":
        """A chunk that names its last ids and hides the others."""
        ids = VOCABULARY.encode(text) if ids is None else ids
        self.said += len(ids) + hidden
        chunk = Chunk(content=text, tokens=ids, tokens_predicted=self.said, **fields)
        self.deltas += self.answer.take(chunk)
        return self

    def end(self, stop_type: str = "eos", unseen: int = 0, cached: int = 0) -> Finished:
        said = self.said + unseen
        timings = Timings(cache_n=cached, predicted_n=said)
        last = Chunk(stop=True, stop_type=stop_type, tokens_predicted=said, timings=timings)
        self.deltas += self.answer.take(last)
        deltas, held = self.answer.finish()
        self.deltas += deltas
        (finished,) = (delta for delta in self.deltas if isinstance(delta, Finished))
        assert self.deltas[-1] is finished
        assert held is finished.position
        return finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, Text))

    def emitted(self, finished: Finished) -> list[int]:
        """The ids that an answer left behind its prompt."""
        assert isinstance(finished.position, Rendered)
        return finished.position.ids()[self.rendering.prompt.total :]


def test_an_answer_is_what_its_tokens_say_and_a_stop_is_none_of_it() -> None:
    stream = Stream().say("hello").say(" w").say("", [END])
    finished = stream.end(cached=3)
    assert stream.text == "hello w"
    assert stream.emitted(finished) == VOCABULARY.encode("hello w")
    assert (finished.reason, finished.output_tokens, finished.cached_tokens) == ("stop", 2, 3)
    assert finished.input_tokens == stream.rendering.prompt.total


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}'
OFFER = Offer(Toolset.read(Raw(wire.encode([WEATHER]))).callables)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_call_ends_with_its_last_brace(trusted: bool) -> None:
    stream = Stream(offer=OFFER, trusted=trusted)
    for character in CALL[:-1]:
        stream.say(character)
    assert not any(isinstance(delta, CallEnded) for delta in stream.deltas)
    stream.say("}")
    assert stream.deltas[-2:] == [CallArguments("}"), CallEnded()]
    stream.say("\n</tool_call>").say("", [END])
    stream.end()
    assert isinstance(stream.deltas[-2], CallEnded), "nothing follows the call"


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("stop_type", ["limit", "eos"])
def test_a_call_that_the_answer_ends_in_is_incomplete(trusted: bool, stop_type: str) -> None:
    stream = Stream(offer=OFFER, trusted=trusted).say(CALL[:-1])
    stream.end(stop_type)
    _, _, arguments, ended, *rest, _ = stream.deltas
    assert (arguments, ended) == (CallArguments('{"city": "Rome"'), CallEnded(False))
    assert rest == ([Text("}")] if stop_type == "eos" else [])


def test_progress_says_nothing() -> None:
    stream = Stream()
    progress = Chunk(content="!", tokens=[0], tokens_predicted=1, prompt_progress=Progress(7))
    assert stream.answer.take(progress) == []
    finished = stream.say("hello").say("", [END]).end()
    assert (stream.text, finished.output_tokens) == ("hello", 1)


@pytest.mark.parametrize("text", ["東", "👩‍👩‍👧", "é"])
def test_tokens_that_were_merged_into_a_character_are_found_again(text: str) -> None:
    ids = VOCABULARY.encode(text)
    stream = Stream().say("hello").say(text, ids[-1:], hidden=len(ids) - 1).say("", [END])
    finished = stream.end()
    assert stream.text == f"hello{text}"
    assert stream.emitted(finished) == [*VOCABULARY.encode("hello"), *ids]
    assert finished.output_tokens == 1 + len(ids)


def test_where_ids_are_lost_the_words_are_not() -> None:
    ids = VOCABULARY.encode("東")
    stream = Stream().say("hello").say("東", ids[-1:], hidden=7).say(" w").say("", [END])
    finished = stream.end()
    assert stream.text == "hello東 w"
    assert (finished.position, finished.reason, finished.output_tokens) == (None, "stop", 10)


def test_ids_that_are_lost_at_the_stop_do_not_hide_it() -> None:
    stream = Stream().say("hello").say("�", [END], hidden=5)
    finished = stream.end()
    assert (stream.text, finished.position) == ("hello�", None)
    assert (finished.reason, finished.output_tokens) == ("stop", 6)


def test_one_token_more_than_allowed_is_asked_for_and_dropped() -> None:
    stream = Stream(limit=2).say("hello").say(" w").say("he")
    finished = stream.end("limit")
    assert stream.text == "hello w"
    assert stream.emitted(finished) == VOCABULARY.encode("hello w")
    assert (finished.reason, finished.output_tokens) == ("max_output_tokens", 2)


def test_one_token_more_is_dropped_where_ids_were_lost_too() -> None:
    stream = Stream(limit=6).say("東", VOCABULARY.encode("東")[-1:], hidden=4).say("he").say("ll")
    finished = stream.end("limit")
    assert (stream.text, finished.position) == ("東he", None)
    assert (finished.reason, finished.output_tokens) == ("max_output_tokens", 6)
    overheard = Stream(limit=5).say("東", VOCABULARY.encode("東")[-1:], hidden=4)
    overheard.say("京", VOCABULARY.encode("京")[-1:], hidden=4)
    assert overheard.end("limit").reason == "max_output_tokens"
    assert overheard.text == "東"


def test_a_stop_at_the_very_limit_is_a_stop() -> None:
    stream = Stream(limit=2).say("hello").say(" w").say("", [END])
    finished = stream.end("limit")
    assert stream.text == "hello w"
    assert (finished.reason, finished.output_tokens) == ("stop", 2)


def test_a_stop_after_the_limit_is_none() -> None:
    stream = Stream(limit=1).say("hello").say(" w").say("", [END])
    assert (stream.end().reason, stream.text) == ("max_output_tokens", "hello")


def test_an_answer_that_fills_the_context_is_cut_off() -> None:
    stream = Stream(limit=2).say("hello").say(" w")
    assert stream.end("limit").reason == "max_output_tokens"
    assert stream.text == "hello w"


def test_a_limit_inside_a_character_leaves_what_came_of_it() -> None:
    ids = VOCABULARY.encode("東")
    stream = Stream(limit=3).say("hello").say("東", ids[-1:], hidden=2)
    finished = stream.end("limit")
    assert stream.text == "hello�"
    assert stream.emitted(finished) == [*VOCABULARY.encode("hello"), *ids[:2]]
    assert (finished.reason, finished.output_tokens) == ("max_output_tokens", 3)


def test_tokens_that_were_never_told_are_counted_and_not_kept() -> None:
    stream = Stream(limit=3).say("hello")
    finished = stream.end("limit", unseen=3)
    assert stream.text == "hello"
    assert stream.emitted(finished) == VOCABULARY.encode("hello")
    assert (finished.reason, finished.output_tokens) == ("max_output_tokens", 3)


def test_a_warmup_says_nothing_and_leaves_its_context() -> None:
    stream = Stream(limit=0, generate=False).say("hello")
    finished = stream.end("limit")
    assert stream.deltas == [finished]
    assert finished.position is stream.rendering.context
    assert (finished.reason, finished.output_tokens) == ("stop", 0)
    assert finished.input_tokens == stream.rendering.context.total


def test_logprobs_come_with_their_words_and_not_for_what_was_dropped() -> None:
    stream = Stream(limit=2)
    for text in ("hello", " w", "he"):
        stream.say(text, completion_probabilities=[Probability(text, -0.5)])
    stream.end("limit")
    told = [each for delta in stream.deltas if isinstance(delta, Text) for each in delta.logprobs]
    assert [each.token for each in told] == ["hello", " w"]
    assert stream.text == "hello w"


def test_a_vocabulary_elsewhere_leaves_the_words_to_the_engine() -> None:
    stream = Stream(by=ELSEWHERE).say("hello").say("東", [9], hidden=2).say("<|im_end|>", [END])
    finished = stream.end()
    assert (stream.text, finished.position, finished.reason) == ("hello東", None, "stop")


def test_an_answer_without_an_end_is_a_failure() -> None:
    stream = Stream().say("hello")
    with pytest.raises(ServerError, match="without a finish reason"):
        stream.answer.finish()
