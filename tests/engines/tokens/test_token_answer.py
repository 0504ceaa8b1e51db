"""Answers made of exact ids, from hand-made pieces, whose UTF-8 is decoded piece by piece."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import (
    CallArguments,
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
from slipring.engines.tokens.token_answer import Piece, TokenAnswer, Utf8Stream
from slipring.prompts.rendering import Rendered
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.protocol import wire
from slipring.protocol.responses import Logprob
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.harness import WEATHER
from tests.prompts.vocabulary import message, of_format, small

VOCABULARY = small()
END = VOCABULARY.control("<|im_end|>")
MODEL = Model(name="m", owner="tests", capabilities=Capabilities())


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
    asked: Job, *pieces: Piece, by: TemplateRenderer | None = None, constrained: bool = False
) -> list[Delta]:
    renderer = by or of_format("chatml", VOCABULARY)
    answer = TokenAnswer(asked, renderer.render(asked), renderer, constrained=constrained)
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


def test_an_answer_begins_with_its_first_id_and_ends_when_that_is_said() -> None:
    renderer = of_format("chatml", VOCABULARY)
    answer = TokenAnswer(job(), renderer.render(job()), renderer)
    seen = []
    for piece in (Piece(cached_tokens=3), said("hello"), Piece(), ENDED):
        answer.take(piece)
        seen.append((answer.has_begun, answer.has_ended))
    assert seen == [(False, False), (True, False), (True, False), (True, True)]


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome, </tool_call> Lazio"}}\n</tool_call>'


@given(
    text=st.sampled_from(
        ["Well. ", CALL, CALL + CALL, f"I ask.\n{CALL}\nNow wait: é.", CALL[:-20], CALL.replace("get_", "")]
    ),
    cuts=st.lists(st.integers(0, 99), max_size=12).map(sorted),
    reads=st.lists(st.integers(0, 12), max_size=4).map(sorted),
    with_logprobs=st.booleans(),
)
def test_what_one_read_brings_says_the_same_as_piece_by_piece(
    text: str, cuts: list[int], reads: list[int], with_logprobs: bool
) -> None:
    asked = job(Offer(Toolset.read(Raw(wire.encode([WEATHER]))).callables))
    ids = VOCABULARY.encode(text)
    told = [Logprob(str(id), -1.0, [], []) for id in ids] if with_logprobs else []
    pieces = [Piece(ids[a:b], logprobs=told[a:b]) for a, b in pairwise([0, *cuts, len(ids)]) if a <= b]
    pieces += [ENDED, Piece(cached_tokens=7)]
    renderer = of_format("chatml", VOCABULARY)
    answer = TokenAnswer(asked, renderer.render(asked), renderer)
    batches = [pieces[a:b] for a, b in pairwise([0, *reads, len(pieces)])]
    deltas = [*(delta for batch in batches for delta in answer.take_all(batch)), *answer.finish()]
    assert condensed(deltas) == condensed(played(asked, *pieces, by=renderer))


def condensed(deltas: list[Delta]) -> list[Any]:
    """Deltas without how their texts are cut, and without what two renderings cannot share."""
    found: list[Any] = []
    for delta in deltas:
        if isinstance(delta, Text):
            if not found or not isinstance(found[-1], tuple):
                found.append(("", []))
            text, logprobs = found.pop()
            found.append((text + delta.text, logprobs + [each.token for each in delta.logprobs]))
        elif isinstance(delta, CallArguments) and found and isinstance(found[-1], CallArguments):
            found.append(CallArguments(found.pop().text + delta.text))
        elif isinstance(delta, Finished):
            assert isinstance(delta.position, Rendered)
            assert isinstance(delta.context, Rendered)
            contexts = (delta.context.ids(), delta.position.ids())
            found.append((structs.replace(delta, position=None, context=None), contexts))
        else:
            found.append(delta)
    return found


@pytest.mark.parametrize("constrained", [False, True])
def test_a_schema_holds_after_the_thought_or_instead_of_it(
    constrained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolset = Toolset.read(Raw(wire.encode([WEATHER])))
    asked = job(Offer(toolset.callables, required=True))
    thinker = of_format("chatml", VOCABULARY)
    monkeypatch.setattr(thinker, "opens_thought", lambda prompt: True)
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


def decoded_utf8(*pieces: bytes) -> list[str]:
    stream = Utf8Stream()
    return [*(stream.feed(piece) for piece in pieces), stream.finish()]


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([], [""]),
        ([b""], ["", ""]),
        ([b"abc", b"d"], ["abc", "d", ""]),
        (["é".encode()[:1], "é".encode()[1:]], ["", "é", ""]),
        ([b"a\xf0\x9f", b"\x92", b"\xa9b"], ["a", "", "💩b", ""]),
        ([b"a\xff", b"b"], ["a\ufffd", "b", ""]),
        ([b"a\xe2\x82", b"b"], ["a", "\ufffdb", ""]),
        ([b"a\xe2\x82"], ["a", "\ufffd"]),
        ([b"\x80"], ["\ufffd", ""]),
    ],
)
def test_text_is_returned_as_soon_as_its_characters_are_complete(
    pieces: list[bytes], texts: list[str]
) -> None:
    assert decoded_utf8(*pieces) == texts


@given(st.lists(st.binary(max_size=5) | st.text(max_size=5).map(str.encode)))
def test_any_split_of_bytes_gives_the_same_text(pieces: list[bytes]) -> None:
    assert "".join(decoded_utf8(*pieces)) == b"".join(pieces).decode(errors="replace")


@given(st.text())
def test_text_is_decoded_byte_by_byte(text: str) -> None:
    data = text.encode()
    assert "".join(decoded_utf8(*(data[at : at + 1] for at in range(len(data))))) == text
