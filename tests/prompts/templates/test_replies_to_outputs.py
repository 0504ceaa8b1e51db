"""Templates that want an answer between tool outputs and a user message."""

import pytest

from slipring.core.chain.instructions_and_tools import Head
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.oracles.comparison import family_renderer, family_vocabulary, items_of
from tests.prompts.oracles.conversations import OUTPUT, QUESTION, THANKS, WEATHER, answer
from tests.prompts.oracles.families import FAMILIES
from tests.prompts.template_texts import everything
from tests.prompts.templates.family_templates import source_of
from tests.prompts.test_rendering import job
from tests.prompts.vocabulary import small_metadata

ALTERNATING = """\
{%- set state = namespace(last='assistant') %}
{%- for message in messages %}
    {%- if message.role == 'user' and state.last != 'assistant' %}{{ raise_exception('order') }}{% endif %}
    {%- if message.role == 'assistant' and not message.tool_calls and not message.content and REFUSES %}
        {{- raise_exception('empty') }}
    {%- endif %}
    {%- set state.last = 'call' if message.tool_calls else message.role %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


@pytest.mark.parametrize(("refuses", "reply"), [("false", ""), ("true", "OK.")])
def test_an_answer_is_put_between_outputs_and_a_user_message(refuses: str, reply: str) -> None:
    model = ModelTemplate(source=ALTERNATING.replace("REFUSES", refuses), eos_token="<|im_end|>")
    renderer = TemplateRenderer(model, everything())
    assert (renderer.forms.user_after_outputs, renderer.forms.reply) == (False, reply)
    items = tuple(items_of([QUESTION, answer(calls=[WEATHER]), OUTPUT, THANKS]))
    ids = renderer.render(job(items, head=Head())).prompt.ids()
    names = {everything().control(name): name for name in everything().control_tokens()}
    text = b"".join(names[id].encode() if id in names else everything().bytes_of(id) for id in ids).decode()
    assert text.endswith(
        "<|im_start|>tool\nSunny, 21 degrees.<|im_end|>\n"
        f"<|im_start|>assistant\n{reply}<|im_end|>\n"
        "<|im_start|>user\nThanks. And in Oslo?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_that_need_no_answer_get_none() -> None:
    for name in ("qwen3", "glm_4_7", "mistral_small"):
        assert renderer_of(name).forms.user_after_outputs


def renderer_of(name: str) -> TemplateRenderer:
    family = FAMILIES[name]
    vocabulary: Tokenizer = family_vocabulary(small_metadata(), family)
    return family_renderer(family, source_of(family.own), vocabulary)


def test_brackets_of_control_tokens_do_not_hide_the_end_of_an_answer() -> None:
    """MiniMax's ``[e~[`` begins with a bracket, Mistral's ``[INST]`` too."""
    assert renderer_of("minimax_m2").probed.closers == ("[e~[", "[e~[")
    assert renderer_of("ministral_3").probed.closers == ("</s>", "</s>")
