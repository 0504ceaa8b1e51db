"""Whose thoughts a model reads: as its template says, as a request asks, and what is reported of it."""

from itertools import product

import pytest
from msgspec import structs

from slipring.core.generation import Job
from slipring.prompts.fallback_reasons import ASKED_TO_DROP, CONTEXT_CHANGED
from slipring.prompts.rendering import Rendering
from slipring.prompts.templates.template_renderer import (
    TemplateRenderer,
    clipped_ranges,
    joined_ranges,
    ranges_of,
)
from slipring.prompts.tokenization.token_budget import TokenBudget
from slipring.prompts.truncation import shorten
from slipring.protocol.items.items import Item
from tests.prompts.templates.family_renderers import family_renderer
from tests.prompts.templates.family_templates import NAMES
from tests.prompts.templates.test_chat_messages import thought
from tests.prompts.templates.test_family_renderers import (
    EMITTED,
    Chain,
    call,
    output,
    spelled,
    with_effort,
)
from tests.prompts.test_rendering import after, job, user
from tests.prompts.vocabulary import message

EVERY_FAMILY = pytest.mark.parametrize("family", NAMES)
CONTEXTS = (None, "current_turn", "all_turns")
THOUGHTS = ("About clouds.", "About rain.", "About snow.", "About hail.")
HISTORY: tuple[Item, ...] = (
    user("Weather?"),
    *(thought(THOUGHTS[0]), call(1), output(1)),
    *(thought(THOUGHTS[1]), message("assistant", "It is fine.")),
    user("And tomorrow?"),
    *(thought(THOUGHTS[2]), call(2), output(2)),
)
"""Two thoughts of an earlier turn, and one of the current turn."""


def asking(asked: Job, context: str | None) -> Job:
    settings = structs.replace(asked.settings, reasoning_context=context, effort="high")
    return structs.replace(asked, settings=settings)


def withheld(renderer: TemplateRenderer, rendering: Rendering) -> set[int]:
    ranges = renderer.withheld_thoughts(rendering.prompt)
    return {number for first, end in ranges for number in range(first, end)}


@EVERY_FAMILY
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_thought_of_an_earlier_turn_is_written_or_reported(family: str, context: str | None) -> None:
    renderer = family_renderer(family)
    rendering = renderer.render(asking(job(HISTORY), context))
    written = spelled(renderer, rendering.prompt)
    assert withheld(renderer, rendering) == {at for at in (0, 1) if THOUGHTS[at] not in written}
    if context == "current_turn":
        assert withheld(renderer, rendering) == {0, 1}


@EVERY_FAMILY
def test_a_request_for_all_turns_is_the_option_of_the_operator(family: str) -> None:
    asked, kept = family_renderer(family), family_renderer(family, keeps_thoughts=True)
    by_request = asked.render(asking(job(HISTORY), "all_turns")).prompt
    by_option = kept.render(asking(job(HISTORY), None)).prompt
    assert by_request.ids() == by_option.ids()


@EVERY_FAMILY
def test_a_chain_with_another_context_reads_as_its_whole_history(family: str) -> None:
    renderer = family_renderer(family)
    for before, now in product(CONTEXTS, CONTEXTS):
        first = asking(job(HISTORY[:-1]), before)
        parent = after(first, renderer.render(first).context, output=())
        for added in (HISTORY[-1:], (HISTORY[-1], message("assistant", "Snow."), user("Thanks."))):
            turn = asking(job(added, parent), now)
            chained = renderer.render(turn)
            whole = renderer.render(structs.replace(turn, parent=None, input=tuple(turn.context())))
            assert chained.prompt.ids() == whole.prompt.ids(), (before, now)
            assert withheld(renderer, chained) == withheld(renderer, whole), (before, now)


@EVERY_FAMILY
def test_a_request_for_the_current_turn_drops_what_the_model_thought_before(family: str) -> None:
    answer = (thought(THOUGHTS[0]), message("assistant", "It rains."))
    chain = Chain(family_renderer(family, keeps_thoughts=True), "high", "current_turn")
    chain.turn(user("Weather?"), answer=(thought(THOUGHTS[0]), call(1)))
    chain.turn(output(1), answer=answer)
    assert chain.turn(user("And now?"), answer=answer).fallback == ASKED_TO_DROP


def test_a_request_for_all_turns_appends_where_nothing_was_withheld() -> None:
    renderer = family_renderer("qwen3")
    answer = (thought(THOUGHTS[0]), message("assistant", "It rains."))
    first = with_effort(job((user("Weather?"),)), "high")
    parent = after(first, renderer.render(first).with_answer(EMITTED), output=answer)
    second = asking(job((user("And now?"),), parent), "all_turns")
    kept = renderer.render(second)
    assert kept.fallback is None
    assert withheld(renderer, kept) == set()
    third = asking(job((user("Thanks."),), after(second, kept.with_answer(EMITTED), output=answer)), None)
    dropped = renderer.render(third)
    assert dropped.fallback == CONTEXT_CHANGED
    assert withheld(renderer, dropped) == {0, 1}


def test_thoughts_are_counted_from_the_beginning_where_the_oldest_items_were_dropped() -> None:
    renderer = family_renderer("qwen3")
    long = (user("x"), thought("Long ago."), message("assistant", "y" * 4000))
    asked = asking(job((*long, *HISTORY)), None)
    whole = renderer.render(asked)
    shortened = shorten(renderer, asked, TokenBudget(whole.prompt.total - 1000))
    assert withheld(renderer, whole) == {0, 1, 2}
    assert shortened is not None
    assert shortened.dropped_items
    assert withheld(renderer, shortened) == {1, 2}


def test_a_history_that_contains_the_marks_of_thoughts_is_no_thought() -> None:
    renderer = family_renderer("qwen3")
    marked = (*HISTORY[:-1], user("((thought 1)) ((thought 2)) ((thought 3)) ((thought 4)) ((thought(("))
    assert withheld(renderer, renderer.render(asking(job(marked), None))) == {0, 1, 2}


def test_numbers_become_ranges_of_a_bounded_number() -> None:
    assert ranges_of([0, 1, 2, 5, 6, 9]) == ((0, 3), (5, 7), (9, 10))
    assert len(ranges_of(range(0, 1000, 2))) == 64
    assert clipped_ranges(((0, 3), (5, 7), (9, 10)), 6) == ((0, 3), (5, 6))
    assert clipped_ranges(((0, 3),), 0) == ()
    assert joined_ranges(((0, 3),), ((3, 4), (6, 7))) == ((0, 4), (6, 7))
    assert joined_ranges(((0, 3),), ((4, 5),)) == ((0, 3), (4, 5))
    assert joined_ranges((), ((4, 5),)) == joined_ranges(((4, 5),), ()) == ((4, 5),)
    assert len(joined_ranges(ranges_of(range(0, 1000, 2)), ranges_of(range(2000, 3000, 2)))) == 64
