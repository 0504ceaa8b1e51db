"""A chain reads as the template writes its whole history: random histories, for every family.

``make test-chains`` compares more of them, and the official templates of a directory.
"""

import pytest
from hypothesis import given, settings

from slipring.prompts.rendering import CALL_IDS, CALL_TEXTS, EMPTY_THOUGHTS, LOOP_THOUGHTS, WHITE_SPACE
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from tests.prompts.chains.chain_machine import ChainMachine, Difference
from tests.prompts.chains.chain_renderers import DAY, NAMES, renderer_named
from tests.prompts.chains.histories import HISTORIES, Answer, Call, History, Input, Start, Turn
from tests.prompts.templates.family_renderers import family_renderer
from tests.prompts.templates.family_renderers import vocabulary as family_vocabulary

EXAMPLES = 25
SEARCH, WEATHER = Call("search", {"query": "rain"}), Call("get_weather", {"city": "Rome"})
TEXT, THOUGHT = Answer(False, True, ()), Answer(True, True, ())


def history(
    start: Start, *turns: tuple[Input, int, Answer], tools: bool = True, instructed: bool = True
) -> History:
    return History(start, instructed, tools, tuple(Turn(*turn) for turn in turns))


def played(renderer: TemplateRenderer, played: History) -> tuple[ChainMachine, list[Difference]]:
    machine = ChainMachine(renderer, played, DAY)
    return machine, list(machine.differences())


def effort_of(renderer: TemplateRenderer, effort: str | None) -> int:
    """The number of an effort in histories."""
    return (None, *renderer.efforts).index(effort)


@pytest.mark.parametrize("name", NAMES)
def test_a_chain_reads_as_the_whole_history(name: str) -> None:
    renderer = renderer_named(name)
    appended = 0

    @settings(max_examples=EXAMPLES)
    @given(HISTORIES)
    def reads_the_same(history: History) -> None:
        nonlocal appended
        machine, differences = played(renderer, history)
        assert not differences, str(differences[0])
        appended += machine.appended

    reads_the_same()
    assert appended > 0


@pytest.mark.parametrize("family", ["qwen3", "gemma_4", "deepseek_v3_2", "cohere", "seed_oss", "qwen3_5"])
def test_empty_thoughts_stay_where_the_template_drops_them_and_the_renderer_says_so(family: str) -> None:
    renderer = family_renderer(family)
    assert EMPTY_THOUGHTS in renderer.chain_choices
    off = effort_of(renderer, "none")
    turns: list[tuple[Input, int, Answer]] = [("user", off, TEXT)] * 3
    machine, differences = played(renderer, history("user", *turns))
    assert (machine.appended, machine.in_full, differences) == (2, 0, [])


def test_a_difference_that_no_choice_names_is_found() -> None:
    """The judge of the test above sees what it must not see."""
    renderer = family_renderer("qwen3")
    off = effort_of(renderer, "none")
    plain = history("user", ("user", off, TEXT), ("user", off, TEXT))
    [difference] = ChainMachine(renderer, plain, DAY, choices=()).differences()
    assert difference.between == "chain and whole"
    assert "<think>\n\n</think>" in difference.one
    assert "<think>" in str(difference)
    assert difference.kind() != Difference("chain and whole", 0, "a", "b").kind()


def test_what_the_renderer_does_not_name_is_rendered_in_full() -> None:
    shared = family_renderer("qwen3")
    renderer = TemplateRenderer(shared.model, shared.vocabulary, today=DAY)
    renderer.probed.chain_choices = ()
    off = effort_of(renderer, "none")
    machine, differences = played(renderer, history("user", ("user", off, TEXT), ("user", off, TEXT)))
    assert (machine.appended, machine.in_full, differences) == (0, 1, [])


@pytest.mark.parametrize("family", ["kimi_k2", "cohere"])
@pytest.mark.parametrize("start", ["call", "long", "steered loop"])
def test_outputs_are_numbered_after_a_history_with_calls(family: str, start: Start) -> None:
    renderer = family_renderer(family)
    calls = Answer(False, False, (SEARCH, WEATHER))
    machine, differences = played(
        renderer, history(start, ("user", 0, calls), ("outputs", 0, calls), ("outputs", 0, TEXT))
    )
    assert (machine.appended, differences) == (2, [])


@pytest.mark.parametrize(
    "family", ["gpt_oss", "step_3_5", "deepseek_v3_1", "deepseek_v3_2", "kimi_k2", "qwen3"]
)
@pytest.mark.parametrize("start", ["developer", "user"])
def test_thoughts_end_where_a_developer_speaks(family: str, start: Start) -> None:
    renderer = family_renderer(family)
    high = effort_of(renderer, "high") if "high" in renderer.efforts else 0
    turns: list[tuple[Input, int, Answer]] = [("developer", high, THOUGHT)] * 3
    assert not played(renderer, history(start, *turns))[1]


@pytest.mark.parametrize("name", NAMES)
def test_efforts_that_change_from_turn_to_turn(name: str) -> None:
    renderer = renderer_named(name)
    calls = Answer(True, False, (SEARCH,))
    turns: list[tuple[Input, int, Answer]] = [
        ("user", number, answer) for number, answer in enumerate((calls, THOUGHT, TEXT, calls, THOUGHT, TEXT))
    ]
    for start in ("user", "developer", "long"):
        assert not played(renderer, history(start, *turns))[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_history_with_a_broken_call_is_continued(name: str) -> None:
    calls = Answer(False, False, (SEARCH,))
    turns: list[tuple[Input, int, Answer]] = [("user", 0, calls), ("outputs", 0, TEXT), ("user", 0, TEXT)]
    machine, differences = played(renderer_named(name), history("broken call", *turns))
    assert (machine.appended + machine.in_full, differences) == (2, [])


def test_a_text_that_the_template_writes_as_a_thought_is_one() -> None:
    """gpt-oss: a text before a call is dropped like a thought, and may follow one."""
    renderer = family_renderer("gpt_oss")
    assert not renderer.forms.text_before_calls
    for answer in (Answer(False, True, (SEARCH,)), Answer(True, True, (SEARCH,))):
        turns: list[tuple[Input, int, Answer]] = [
            ("user", 0, answer),
            ("outputs", 0, TEXT),
            ("user", 0, TEXT),
        ]
        machine, differences = played(renderer, history("user", *turns))
        assert (machine.appended, machine.in_full, differences) == (1, 1, [])


def renderer_for(source: str) -> TemplateRenderer:
    model = ModelTemplate(source=source, eos_token="<|im_end|>")
    return TemplateRenderer(model, family_vocabulary(), today=DAY)


LOOPS: list[tuple[Input, int, Answer]] = [
    ("user", 0, Answer(False, False, (SEARCH,))),
    ("outputs", 0, Answer(False, False, (WEATHER,))),
    ("outputs", 0, TEXT),
    ("user", 0, TEXT),
]
OUTPUT_END = "{{ '' if loop.last else '\\n' }}"
FIRST_CALL = "{{ '' if state.called else 'First: ' }}{% set state.called = true %}"
CALLS = """\
{%- set state = namespace(called=false) -%}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>tool\\n' + message.content }}OUTPUT_END{{ '<|im_end|>' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
FIRST_CALL{{- '<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def test_white_space_that_the_template_changes_stays_and_the_renderer_says_so() -> None:
    """Hermes 3 writes a line end after an output once something follows."""
    renderer = renderer_for(CALLS.replace("OUTPUT_END", OUTPUT_END).replace("FIRST_CALL", ""))
    assert renderer.chain_choices == (WHITE_SPACE,)
    machine, differences = played(renderer, history("user", *LOOPS))
    assert (machine.appended, machine.in_full, differences) == (3, 0, [])


def test_ids_that_the_template_adds_to_earlier_calls_stay_out_and_the_renderer_says_so() -> None:
    """Apriel 1.5 and 1.6 write the last call without an id, as the model does, and earlier ones with it."""
    ids = """{{ '\\n' }}{{ '' if loop.last else ', "id": "' + message.tool_calls[0].id + '"' }}"""
    source = CALLS.replace("OUTPUT_END", "").replace("FIRST_CALL", "")
    head, call, rest = source.partition("{{ call.function | tojson }}")
    outer = head.replace("{%- for call in", "{%- set is_last = loop.last -%}{%- for call in")
    renderer = renderer_for(outer + call + ids.replace("loop.last", "is_last") + rest)
    assert renderer.chain_choices == (CALL_IDS,)
    machine, differences = played(renderer, history("user", *LOOPS))
    assert (machine.appended, machine.in_full, differences) == (3, 0, [])


OUTPUTS_ENDED = """\
{%- set state = namespace(called=false, outputs=false) -%}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>tool\\n' + message.content + '<|im_end|>' -}}{%- set state.outputs = true -%}
{%- else -%}
{%- set state.outputs = false -%}
{{- '' if message.tool_calls and state.called else '<|im_start|>' + message.role + '\\n' -}}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{%- set state.called = true -%}
{{- '<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if state.outputs -%}{{- '<|im_start|>ended\\n' -}}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def test_the_first_call_of_a_conversation_is_told_from_others_where_outputs_end_it() -> None:
    """DeepSeek R1's distills write later calls without a mark, and end outputs only where nothing follows."""
    renderer = renderer_for(OUTPUTS_ENDED)
    calls = Answer(False, False, (SEARCH,))
    turns: list[tuple[Input, int, Answer]] = [("user", 0, calls), ("outputs", 0, TEXT)]
    machine, differences = played(renderer, history("user", *turns, *turns, ("user", 0, TEXT)))
    assert differences == []
    assert machine.in_full


HOISTED = """\
{%- set state = namespace(asked=false, called=false) -%}
{%- for message in messages if message.role == 'system' -%}{{- message.content -}}{%- endfor -%}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- set state.asked = true -%}{{- '<|im_start|>user\\n' + message.content + '<|im_end|>' -}}
{%- elif message.role == 'tool' -%}
{%- set state.asked = false -%}{{- '<|im_start|>tool\\n' + message.content + '<|im_end|>' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' if state.asked else '' }}{% set state.asked = false -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def test_an_answer_to_a_developer_whose_message_moves_to_the_beginning() -> None:
    """SGLang's template of DeepSeek V3.2: two answers then follow each other, the second without a mark."""
    renderer = renderer_for(HOISTED)
    turns: list[tuple[Input, int, Answer]] = [("user", 0, TEXT), ("developer", 0, TEXT), ("user", 0, TEXT)]
    assert played(renderer, history("steered loop", *turns, tools=False))[1] == []


def test_several_calls_that_end_otherwise_than_one() -> None:
    """DeepSeek R1's distills write the token that ends an answer after the second call only."""
    source = CALLS.replace("OUTPUT_END", "").replace("FIRST_CALL", "")
    ended = "{{- '<|im_end|>' if (message.tool_calls or []) | length != 1 else '' -}}"
    at = source.rindex("{{- '<|im_end|>' -}}")
    renderer = renderer_for(source[:at] + ended + source[at + len("{{- '<|im_end|>' -}}") :])
    calls = Answer(False, False, (SEARCH, WEATHER))
    turns: list[tuple[Input, int, Answer]] = [("user", 0, calls), ("outputs", 0, TEXT), ("user", 0, TEXT)]
    assert played(renderer, history("user", *turns))[1] == []


def test_texts_before_calls_that_the_template_drops_stay_and_the_renderer_says_so() -> None:
    """Hermes' templates write calls without the text before them."""
    dropped = CALLS.replace("OUTPUT_END", "").replace("FIRST_CALL", "")
    content = "{{- message.content or '' -}}"
    renderer = renderer_for(dropped.replace(content, "{{- '' if message.tool_calls else message.content -}}"))
    assert renderer.chain_choices == (CALL_TEXTS,)
    spoken = Answer(False, True, (SEARCH,))
    machine, differences = played(renderer, history("user", ("user", 0, spoken), ("outputs", 0, TEXT)))
    assert (machine.appended, machine.in_full, differences) == (1, 0, [])


@pytest.mark.parametrize("name", ["mistral_nemo", "deepseek_v3_1", "qwen3"])
def test_a_developer_after_an_answer_does_not_hide_that_answer(name: str) -> None:
    """Without it, the late message would be one of those at the beginning."""
    calls = Answer(False, False, (WEATHER, SEARCH))
    turns: list[tuple[Input, int, Answer]] = [
        ("outputs and steer", 0, TEXT),
        ("developer", 0, calls),
        ("outputs", 0, TEXT),
        ("two users", 0, TEXT),
    ]
    for start in ("developer", "user"):
        assert not played(renderer_named(name), history(start, *turns))[1]


def test_the_first_call_of_a_conversation_is_told_from_others() -> None:
    renderer = renderer_for(CALLS.replace("OUTPUT_END", "").replace("FIRST_CALL", FIRST_CALL))
    assert renderer.chain_choices == ()
    for start in ("user", "long", "call"):
        machine, differences = played(renderer, history(start, *LOOPS, *LOOPS))
        assert not differences
        assert machine.appended > 0


THINKING = """\
{%- set state = namespace(user=0) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set state.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.reasoning_content and loop.index0 > state.user and enable_thinking != false -%}
{{- '<think>' + message.reasoning_content + '</think>' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' + ('<think></think>' if enable_thinking is false else '') -}}
{%- endif -%}
"""


def test_an_effort_that_drops_the_thoughts_of_a_loop_causes_a_full_rendering() -> None:
    renderer = renderer_for(THINKING)
    on, off = 0, effort_of(renderer, "none")
    calls = Answer(True, False, (WEATHER,))
    for first, second, in_full in ((on, on, 0), (on, off, 1)):
        turns: list[tuple[Input, int, Answer]] = [("user", first, calls), ("outputs", second, TEXT)]
        machine, differences = played(renderer, history("user", *turns))
        assert (machine.in_full, differences) == (in_full, [])


def test_thoughts_that_the_operator_keeps_are_named() -> None:
    names = {}
    for family in ("deepseek_v3_1", "qwen3_5"):  # the second has a variable for that
        names[family] = [each.name for each in family_renderer(family, keeps_thoughts=True).chain_choices]
    assert names == {"deepseek_v3_1": ["all_thoughts"], "qwen3_5": []}


def test_thoughts_of_a_loop_stay_if_the_template_never_writes_them() -> None:
    renderer = renderer_named("oracle deepseek_r1")
    assert LOOP_THOUGHTS in renderer.chain_choices
    calls = Answer(True, False, (WEATHER,))
    loop = history("user", ("user", 0, calls), ("outputs", 0, calls), ("user", 0, TEXT))
    machine, differences = played(renderer, loop)
    assert (machine.appended, differences) == (2, [])
