"""Answers made of exact ids, from hand-made pieces."""

import pytest
from msgspec import Raw

from slipring.core.generation import (
    CallStarted,
    Capabilities,
    Delta,
    Finished,
    Job,
    Model,
    Prefilled,
    Settings,
    Text,
    Thought,
)
from slipring.core.head import Head
from slipring.engines.tokens import Answer, Piece
from slipring.errors import ServerError
from slipring.prompts.chatml import ChatMl
from slipring.prompts.folding import FoldingRenderer
from slipring.prompts.rendering import Rendered
from slipring.protocol import wire
from slipring.protocol.responses import Logprob
from slipring.protocol.tools import Offer, Toolset
from tests.harness import WEATHER
from tests.prompts.vocabulary import message, small

VOCABULARY = small()
END = VOCABULARY.control("<|im_end|>")
MODEL = Model(name="m", owner="tests", capabilities=Capabilities())


class Thinker(FoldingRenderer):
    """Opens a thought with every turn of the model."""

    def opens_thought(self, prompt: Rendered) -> bool:
        return True


def job(offer: Offer | None = None, *, generate: bool = True) -> Job:
    return Job(
        response_id="r",
        tenant="t",
        model=MODEL,
        head=Head(),
        parent=None,
        input=(message("user", "Hi"),),
        offer=offer or Offer(),
        settings=Settings(),
        generate=generate,
    )


def played(
    asked: Job, *pieces: Piece, by: FoldingRenderer | None = None, constrained: bool = False
) -> list[Delta]:
    renderer = by or FoldingRenderer(ChatMl(), VOCABULARY)
    answer = Answer(asked, renderer.render(asked), renderer, constrained=constrained)
    return [*(delta for piece in pieces for delta in answer.take(piece)), *answer.finish()]


def said(text: str) -> Piece:
    return Piece(VOCABULARY.encode(text))


ENDED = Piece([END], reason="stop", stop_id=END)


def test_a_stop_token_is_none_of_the_answer_wherever_it_comes() -> None:
    told = [Logprob(name, -1.0, [], []) for name in ("hello", "end")]
    ids = [*VOCABULARY.encode("hello"), END]
    prefilled, text, finished = played(job(), Piece(ids, logprobs=told, reason="stop"))
    assert isinstance(prefilled, Prefilled)
    assert isinstance(text, Text)
    assert (text.text, [each.token for each in text.logprobs]) == ("hello", ["hello"])
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.output_tokens) == ("stop", 1)


def test_an_answer_that_is_nothing_is_an_answer() -> None:
    prefilled, finished = played(job(), ENDED)
    assert isinstance(prefilled, Prefilled)
    assert isinstance(finished, Finished)
    assert finished.output_tokens == 0


def test_an_answer_without_an_end_is_a_failure() -> None:
    with pytest.raises(ServerError, match="without saying so"):
        played(job(), said("hello"))


@pytest.mark.parametrize("constrained", [False, True])
def test_a_schema_holds_after_the_thought_or_instead_of_it(constrained: bool) -> None:
    toolset = Toolset.read(Raw(wire.encode([WEATHER])))
    asked = job(Offer(toolset.callables, required=True))
    thinker = Thinker(ChatMl(), VOCABULARY)
    call = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    at_once = played(asked, said(" "), said(call), ENDED, by=thinker, constrained=constrained)
    assert any(isinstance(delta, CallStarted) for delta in at_once) is constrained
    later = played(
        asked, said("Hm."), said("</think>"), said(call), ENDED, by=thinker, constrained=constrained
    )
    assert [delta.text for delta in later if isinstance(delta, Thought)] == ["Hm."]
    assert any(isinstance(delta, CallStarted) for delta in later)
    finished = later[-1]
    assert isinstance(finished, Finished)
    assert finished.reasoning_tokens == len(VOCABULARY.encode("Hm."))
