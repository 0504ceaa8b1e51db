"""What holds for the template of every model family: loops append, thoughts stay, efforts have effect."""

import json

import pytest
from msgspec import structs

from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job
from slipring.prompts.fallback_reasons import DROPS_THOUGHTS, EFFORT_CHANGED, MOVES_EARLIER, REWRITES_EARLIER
from slipring.prompts.rendering import Rendered, Rendering
from slipring.prompts.templates.template_renderer import Tail, TemplateRenderer
from slipring.protocol.items.items import Item
from tests.prompts.templates.family_renderers import family_renderer
from tests.prompts.templates.family_templates import NAMES
from tests.prompts.templates.test_chat_messages import thought
from tests.prompts.test_rendering import after, job, user
from tests.prompts.vocabulary import item, message

EVERY_FAMILY = pytest.mark.parametrize("family", NAMES)
EMITTED = [7, 8, 9]
MOVING = {"mistral_nemo"}
"""Families whose template writes instructions and tools with the last message of the user."""
KEEPING = {"cohere", "kimi_k3", "minimax_m3", "ministral_3", "seed_oss", "deepseek_v4"}
"""Families that keep the thoughts of earlier turns, if there are tools."""

ALTERNATING = {"ministral_3"}
"""Families whose template refuses answers that follow no message of the user."""
BROKEN = ('{"city": "Os', "in Oslo", '["Oslo"]', '"Oslo"', "null", "53190")
"""Arguments that are no JSON object, as a model may write them, or be cut off while it does."""
OBJECTS_ONLY = {
    *("deepseek_v3_2", "deepseek_v4", "glm_4_5", "glm_4_7", "kimi_k3", "lfm2_5", "llama_4", "minimax_m2"),
    *("nemotron_3", "qwen3_5", "qwen3_coder", "seed_oss", "step_3_5"),
}
"""Families whose template refuses such arguments as text."""


def call(number: int) -> Item:
    return item("function_call", call_id=f"c{number}", name="weather", arguments='{"city": "Oslo"}')


def output(number: int) -> Item:
    return item("function_call_output", call_id=f"c{number}", output="3 degrees")


def with_effort(asked: Job, effort: str | None) -> Job:
    return structs.replace(asked, settings=structs.replace(asked.settings, effort=effort))


def spelled(renderer: TemplateRenderer, context: Rendered) -> str:
    vocabulary = renderer.vocabulary
    names = {vocabulary.control(token): token for token in vocabulary.control_tokens()}
    pieces = [names[id].encode() if id in names else vocabulary.bytes_of(id) for id in context.ids()]
    return b"".join(pieces).decode()


class Chain:
    """A chain of turns in which the model emits the same ids whatever it is asked."""

    def __init__(
        self, renderer: TemplateRenderer, effort: str | None = "high", context: str | None = None
    ) -> None:
        self._renderer = renderer
        self._effort = effort
        self._context = context
        self._parent: ResponseState | None = None

    def turn(self, *items: Item, answer: tuple[Item, ...]) -> Rendering:
        """Render a turn. If it appends, the prompt begins with all ids of the parent, as emitted."""
        asked = with_effort(job(items, self._parent), self._effort)
        settings = structs.replace(asked.settings, reasoning_context=self._context)
        asked = structs.replace(asked, settings=settings)
        rendering = self._renderer.render(asked)
        if self._parent is not None and rendering.fallback is None:
            before = self._parent.position.ids()
            assert rendering.prompt.ids()[: len(before)] == before
        self._parent = after(asked, rendering.with_answer(EMITTED), output=answer)
        return rendering


@EVERY_FAMILY
@pytest.mark.parametrize("thinks", [False, True])
def test_tool_loops_append_with_thoughts_and_without(family: str, thinks: bool) -> None:
    chain = Chain(family_renderer(family))
    thoughts = (thought("hm"),) if thinks else ()
    chain.turn(user("Weather?"), answer=(*thoughts, call(1)))
    for number in range(1, 4):
        rendering = chain.turn(output(number), answer=(*thoughts, call(number + 1)))
        assert rendering.fallback in ({None, REWRITES_EARLIER} if family in MOVING else {None})


@EVERY_FAMILY
def test_outputs_are_numbered_as_in_the_whole_context(family: str) -> None:
    renderer = family_renderer(family)
    items: tuple[Item, ...] = (user("Weather?"),)
    first = with_effort(job(items), "high")
    parent = after(first, renderer.render(first).with_answer(EMITTED), output=(call(1),))
    for number in range(1, 6):
        items = (*items, call(number), output(number))
        turn = with_effort(job((output(number),), parent), "high")
        rendering = renderer.render(turn)
        assert rendering.fallback is None or family in MOVING
        written = rendering.prompt.ids()[parent.position.total :]
        expected = renderer.render(with_effort(job(items), "high")).prompt.ids()
        assert expected[-len(written) :] == written, number
        parent = after(turn, rendering.with_answer(EMITTED), output=(call(number + 1),))


@EVERY_FAMILY
def test_the_outputs_of_all_calls_of_an_answer_are_written(family: str) -> None:
    """Also where the template takes one call per message only, and the model has written two."""
    renderer = family_renderer(family)
    chain = Chain(renderer)
    chain.turn(user("Weather?"), answer=(call(1), call(2)))
    outputs = [item("function_call_output", call_id=f"c{number}", output=f"{number} mm") for number in (1, 2)]
    written = spelled(renderer, chain.turn(*outputs, answer=()).prompt)
    assert written.index("1 mm") < written.index("2 mm")


def broken_call(arguments: str) -> Item:
    return item("function_call", call_id="c1", name="weather", arguments=arguments)


def quoted(arguments: str) -> str:
    """A text as a template writes it that writes all arguments as JSON."""
    return json.dumps(arguments)[1:-1]


@EVERY_FAMILY
@pytest.mark.parametrize("arguments", BROKEN)
def test_a_history_with_a_broken_call_is_written_and_continued(family: str, arguments: str) -> None:
    renderer = family_renderer(family)
    history = (user("Weather?"), broken_call(arguments), output(1), user("Again?"))
    first = with_effort(job(history), "high")
    rendering = renderer.render(first)
    before, said, after_it = spelled(renderer, rendering.prompt).rpartition("3 degrees")
    assert said
    called = before.rpartition("Weather?")[2]
    assert arguments in called or quoted(arguments) in called
    assert "Again?" in after_it

    parent = after(first, rendering.with_answer(EMITTED), output=(call(2),))
    second = with_effort(job((output(2),), parent), "high")
    following = renderer.render(second)
    assert following.fallback is None or family in MOVING
    written = following.prompt.ids()[parent.position.total :]
    whole = renderer.render(with_effort(job((*history, call(2), output(2))), "high")).prompt.ids()
    assert whole[-len(written) :] == written


@EVERY_FAMILY
@pytest.mark.parametrize("arguments", BROKEN)
def test_a_call_that_the_model_breaks_off_is_written_once_thoughts_are_dropped(
    family: str, arguments: str
) -> None:
    """A chain has it as the model wrote it, until everything is rendered."""
    renderer = family_renderer(family)
    chain = Chain(renderer)
    chain.turn(user("Weather?"), answer=(thought("hm"), broken_call(arguments)))
    loop = chain.turn(output(1), answer=(thought("hm"), message("assistant", "It rains.")))
    assert loop.fallback is None or family in MOVING
    spoken = chain.turn(user("And now?"), answer=())
    assert spoken.fallback == (None if family in KEEPING else DROPS_THOUGHTS)
    written = spelled(renderer, spoken.prompt).partition("Weather?")[2]
    assert spoken.fallback is None or arguments in written or quoted(arguments) in written


@EVERY_FAMILY
def test_broken_arguments_become_an_object_where_the_template_refuses_text(family: str) -> None:
    assert family_renderer(family).detected.takes_broken_arguments == (family not in OBJECTS_ONLY)


@pytest.mark.parametrize("family", [name for name in NAMES if name not in ALTERNATING])
def test_a_late_system_message_is_written_wherever_the_template_puts_it(family: str) -> None:
    renderer = family_renderer(family)
    first = job((message("developer", "Tell a story."),))
    answered = renderer.render(first).with_answer(EMITTED)
    late = (message("developer", "Another one."),)
    parent = after(first, answered, output=(message("assistant", "Once."),))
    assert "Another one." in spelled(renderer, renderer.render(job(late, parent)).prompt)


@EVERY_FAMILY
def test_the_user_speaks_after_thoughts(family: str) -> None:
    answer = (thought("hm"), message("assistant", "It rains."))
    chain = Chain(family_renderer(family))
    chain.turn(user("Weather?"), answer=(thought("hm"), call(1)))
    chain.turn(output(1), answer=answer)
    dropped = chain.turn(user("And now?"), answer=answer)
    assert dropped.fallback == (None if family in KEEPING else DROPS_THOUGHTS)


@EVERY_FAMILY
def test_thoughts_are_kept_if_the_operator_says_so(family: str) -> None:
    answer = (thought("hm"), message("assistant", "It rains."))
    chain = Chain(family_renderer(family, keeps_thoughts=True))
    chain.turn(user("Weather?"), answer=(thought("hm"), call(1)))
    chain.turn(output(1), answer=answer)
    kept = chain.turn(user("And now?"), answer=answer)
    assert kept.fallback in ({MOVES_EARLIER, REWRITES_EARLIER} if family in MOVING else {None})


@EVERY_FAMILY
def test_answers_end_at_a_token_that_closes_no_part_of_them(family: str) -> None:
    renderer = family_renderer(family)
    parts = {*renderer.output_format.marks(), "<|end|>", "<|close|>", "</think>"}
    named = {renderer.vocabulary.control(each) for each in parts if renderer.vocabulary.has_control(each)}
    ends = {renderer.vocabulary.control(each) for each in renderer.output_format.stops}
    assert renderer.stop_ids()
    assert not renderer.stop_ids() & (named - ends)


@pytest.mark.parametrize(
    ("family", "effort", "expected"),
    [
        ("gpt_oss", "low", "Reasoning: low"),
        ("gpt_oss", None, "Reasoning: medium"),
        ("qwen3", "none", "<think>\n\n</think>\n\n"),
        ("glm_4_7", "none", "<|assistant|></think>"),
        ("deepseek_v4", "high", "<think>"),
        ("kimi_k3", "low", "thinking_effort=low"),
    ],
)
def test_an_effort_reaches_the_template(family: str, effort: str | None, expected: str) -> None:
    renderer = family_renderer(family)
    rendering = renderer.render(with_effort(job((user("a"),)), effort))
    assert expected in spelled(renderer, rendering.prompt)


def test_an_effort_that_changes_the_beginning_causes_a_full_rendering() -> None:
    for family, expected in (("gpt_oss", EFFORT_CHANGED), ("qwen3", None)):
        renderer = family_renderer(family)
        first = with_effort(job((user("a"),)), "low")
        parent = after(
            first, renderer.render(first).with_answer(EMITTED), output=(message("assistant", "b"),)
        )
        for _ in range(2):  # asked of the template once
            second = renderer.render(with_effort(job((user("c"),), parent), "high"))
            assert second.fallback == expected


def test_variables_of_the_operator_win_over_those_of_an_effort() -> None:
    renderer = family_renderer("qwen3")
    fixed = TemplateRenderer(renderer.model, renderer.vocabulary, variables={"enable_thinking": False})
    prompt = fixed.render(with_effort(job((user("a"),)), "high")).prompt
    assert spelled(fixed, prompt).endswith("<think>\n\n</think>\n\n")


def test_calls_are_counted_where_their_ids_say_so() -> None:
    renderer = family_renderer("kimi_k2")
    chain = Chain(renderer)
    chain.turn(user("Weather?"), answer=(call(1), call(2)))
    second = chain.turn(output(1), output(2), answer=(call(3),))
    third = chain.turn(output(3), answer=())
    assert [renderer.counted_calls(each.prompt) for each in (second, third)] == [2, 3]
    written = spelled(renderer, third.prompt)
    assert [f"functions.weather:{number}" in written for number in range(4)] == [True, True, True, False]


def test_a_prompt_opens_a_thought_unless_thinking_is_off() -> None:
    renderer = family_renderer("qwen3_5")
    assert renderer.opens_thought(renderer.render(job((user("a"),))).prompt)
    assert not renderer.opens_thought(renderer.render(with_effort(job((user("a"),)), "none")).prompt)


@pytest.mark.parametrize("family", ["kimi_k2", "cohere"])
def test_a_context_whose_calls_were_not_counted_is_rendered_in_full(family: str) -> None:
    renderer = family_renderer(family)
    first = job((user("a"),))
    context = renderer.render(first).context
    assert renderer.probed.numbers_calls
    tail = context.body.tail
    assert isinstance(tail, Tail)
    uncounted = structs.replace(context.body, tail=structs.replace(tail, calls=None))
    parent = after(first, Rendered(context.writer, context.preface, uncounted))
    assert renderer.render(job((user("b"),), parent)).fallback == REWRITES_EARLIER
