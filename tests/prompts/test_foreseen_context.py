"""What is certain of a context that is not complete: it begins every context that can follow."""

import datetime
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Prefill
from slipring.prompts.foreseen_context import Foreseen, foresee
from slipring.prompts.rendering import Renderer
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget, TooManyTokens
from slipring.protocol.items.items import Item
from tests.prompts.templates.family_renderers import family_renderer, vocabulary
from tests.prompts.templates.family_templates import NAMES, source_of
from tests.prompts.templates.test_chat_messages import thought
from tests.prompts.templates.test_family_renderers import EMITTED, MOVING, call, with_effort
from tests.prompts.test_rendering import after, job, user
from tests.prompts.vocabulary import item
from tests.prompts.vocabulary import renderer as dialect_renderer

LOG = (
    'test_alpha passed in 12 ms\n\ntest_beta: failed, \'x\' != "y" {"a": [1, 2]}\n   ok   <|im_end|> done.\n'
)
PIECES = st.sampled_from(
    [
        "word",
        " word",
        "\n",
        "\n\n",
        "   ",
        "12345",
        ".",
        "...",
        "=====",
        "é",
        "漢字",
        "👍",
        '{"a":',
        "<think>",
        "'s",
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def output(text: str, number: int = 1) -> Item:
    return item("function_call_output", call_id=f"c{number}", output=text)


def renderers() -> Iterator[object]:
    for family in NAMES:
        yield pytest.param(lambda family=family: family_renderer(family), id=family)
    for writer in ("chatml in smollm2", "chatml in small", "llama3 in small"):
        yield pytest.param(lambda writer=writer: dialect_renderer(writer), id=writer)


EVERY_RENDERER = pytest.mark.parametrize("make", list(renderers()))


def called(renderer: Renderer, *, calls: int = 1, thinks: bool = False) -> ResponseState:
    """A response that has called tools."""
    asked = with_effort(job((user("Weather?"),)), "high")
    thoughts = (thought("hm"),) if thinks else ()
    answer = (*thoughts, *(call(number) for number in range(1, calls + 1)))
    return after(asked, renderer.render(asked).with_answer(EMITTED), output=answer)


def following(parent: ResponseState, *items: Item, generate: bool = True) -> Job:
    return structs.replace(with_effort(job(items, parent), "high"), generate=generate)


def foreseen(
    renderer: Renderer, parent: ResponseState, *items: Item, expects: str = "output"
) -> Foreseen | None:
    prefill = Prefill(following(parent, *items, generate=False), expects)  # type: ignore[arg-type]
    return foresee(renderer, prefill, UNLIMITED)


def assert_begins(found: Foreseen | None, renderer: Renderer, parent: ResponseState, *items: Item) -> None:
    """What was foreseen is how the prompt begins that the items lead to."""
    if found is not None:
        prompt = renderer.render(following(parent, *items)).prompt.ids()
        assert prompt[: found.context.total] == found.context.ids()


@EVERY_RENDERER
def test_a_growing_output_is_foreseen_but_for_its_end(make, request) -> None:
    renderer = make()
    parent = called(renderer, thinks=True)
    for end in range(0, len(LOG) + 1, 17):
        found = foreseen(renderer, parent, output(LOG[:end]))
        for rest in (LOG[end:], "", "x", "\n\n\n"):
            assert_begins(found, renderer, parent, output(LOG[:end] + rest))
    if request.node.callspec.id not in MOVING:
        found = foreseen(renderer, parent, output(100 * LOG))
        assert found is not None
        assert found.parent is parent.position
        whole = renderer.render(following(parent, output(100 * LOG))).context.total
        assert whole - found.context.total < 60


@settings(max_examples=20)
@given(text=TEXTS, rest=TEXTS)
@example("a", "")
@example("12", "3")
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "gemma_4", "mistral_small"])
def test_what_is_certain_of_an_output_stays_whatever_follows(family: str, text: str, rest: str) -> None:
    renderer = family_renderer(family)
    parent = called(renderer)
    assert_begins(foreseen(renderer, parent, output(text)), renderer, parent, output(text + rest))


@EVERY_RENDERER
def test_outputs_that_are_complete_precede_the_one_that_grows(make, request) -> None:
    renderer = make()
    parent = called(renderer, calls=2)
    found = foreseen(renderer, parent, output("first", 1), output(LOG, 2))
    assert_begins(found, renderer, parent, output("first", 1), output(LOG + "more", 2))
    if request.node.callspec.id not in MOVING:
        first_only = foreseen(renderer, parent, output("first", 1))
        assert found is not None
        assert first_only is not None
        assert found.context.total > first_only.context.total


@EVERY_RENDERER
def test_what_a_user_message_rewrites_is_foreseen(make) -> None:
    renderer = make()
    parent = called(renderer, thinks=True)
    asked = following(parent, output("3 degrees"))
    answered = after(
        asked,
        renderer.render(asked).with_answer(EMITTED),
        output=(thought("so"), item("message", role="assistant", content="Cold.")),
    )
    found = foreseen(renderer, answered, expects="user")
    assert_begins(found, renderer, answered, user("Thanks! And tomorrow?"))
    rendering = renderer.render(following(answered, user("Thanks!")))
    if rendering.fallback is None:
        assert found is None, "nothing is rewritten"
    else:
        assert found is not None
        assert found.parent is None
        assert rendering.prompt.total - found.context.total < 60
        if "thoughts" in rendering.fallback:
            assert renderer.rewrites_answers


def test_thoughts_that_are_kept_need_no_second_prefill() -> None:
    assert family_renderer("qwen3").rewrites_answers
    assert not family_renderer("qwen3", keeps_thoughts=True).rewrites_answers
    assert not dialect_renderer("chatml in small").rewrites_answers


def test_the_first_tokens_of_a_foreseen_context_can_be_had() -> None:
    renderer = family_renderer("qwen3")
    parent = called(renderer)
    found = foreseen(renderer, parent, output(LOG))
    assert found is not None
    for tokens in range(parent.position.total, found.context.total + 1):
        assert found.first(tokens).ids() == found.context.ids()[:tokens]


def test_a_context_that_is_too_long_is_not_foreseen() -> None:
    renderer = family_renderer("qwen3")
    parent = called(renderer)
    prefill = Prefill(following(parent, output(100 * LOG), generate=False), "output")
    with pytest.raises(TooManyTokens):
        foresee(renderer, prefill, TokenBudget(200))


def test_an_empty_context_is_not_foreseen() -> None:
    renderer = dialect_renderer("chatml in small")
    parent = called(renderer)
    parent.position = None
    found = foreseen(renderer, parent, output(""))
    assert found is not None
    assert found.parent is None, "the parent was rendered by nobody"


def test_nothing_is_foreseen_if_the_form_of_the_context_depends_on_what_is_missing() -> None:
    late = "{%- set last = messages[-1].content %}{%- if last.endswith('\\n0') %}Late.{% endif -%}\n"
    source = late + source_of("qwen3")
    model = ModelTemplate(source=source, bos_token="<s>", eos_token="<|im_end|>")
    renderer = TemplateRenderer(model, vocabulary(), today=datetime.date(2026, 11, 16))
    assert foreseen(renderer, called(renderer), output(LOG)) is None
