"""What opens the assistant turn is known without rendering twice, where it depends on options only."""

from collections.abc import Sequence
from datetime import date
from itertools import permutations, product
from typing import Any

import jinja2
import pytest
from msgspec import structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Settings
from slipring.prompts.templates.chat_messages import ChatMessage
from slipring.prompts.templates.fixed_prompt import has_fixed_prompt
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.stand_ins import (
    ANSWERED,
    CALLED,
    EARLIER_ANSWERS,
    PLACEHOLDER_TOOLS,
    QUESTION,
)
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from tests.prompts.chains.chain_renderers import NAMES, renderer_named
from tests.prompts.template_texts import everything, template_renderer
from tests.prompts.templates.test_chat_messages import thought
from tests.prompts.templates.test_template_renderer import called, returned, spelled
from tests.prompts.test_rendering import HEAD, after, job, user
from tests.prompts.vocabulary import message

LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}"


def ended(prompt: str, before: str = "") -> str:
    """A template that ends with what opens the assistant turn."""
    return before + LOOP + "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"


BRANCHES = (
    "{{% set n = 1 %}}{{% if on %}}{{% elif {} %}}{{% elif no %}}{{% set n = 2 %}}"
    "{{% else %}}{{% set n = 3 %}}{{% endif %}}"
)
FIXED = {
    "plain": ended(""),
    "no turn is opened": LOOP,
    "an option": ended("{% if enable_thinking is defined and not enable_thinking %}x{% endif %}"),
    "an option with a default": ended("{{ 'x' if t else 'y' ~ -1 }}", "{% set t = on | default(false) %}"),
    "set if not given": ended("{{ on }}", "{% if on is not defined %}{% set on = 1 %}{% endif %}"),
    "set in branches": ended("{{ n }}", BRANCHES.format("off")),
}
NOT_FIXED = {
    "text follows": ended("") + ".",
    "otherwise": ended("{% else %}x"),
    "more is asked": LOOP + "{% if add_generation_prompt and messages[-1].role != 'tool' %}x{% endif %}",
    "asked twice": ended("", "{{ add_generation_prompt }}"),
    "asked in a loop": "{% for m in messages %}{% if add_generation_prompt %}x{% endif %}{% endfor %}",
    "set": "{% set add_generation_prompt = true %}" + LOOP,
    "messages": ended("{{ messages[-1].role }}"),
    "tools": ended("{{ 'x' if tools else 'y' }}"),
    "types of tools": ended("{{ tools_ts_str }}"),
    "from messages": ended("{{ n }}", "{% set n = messages %}"),
    "from what is from messages": ended("{{ k }}", "{% set n = messages %}{% set k = n %}"),
    "set if there are tools": ended("{{ n }}", "{% if tools %}{% set n = 1 %}{% endif %}"),
    "set unless there are tools": ended("{{ n }}", BRANCHES.format("tools")),
    "a namespace": ended("{{ s.n }}", "{% set s = namespace(n=0) %}"),
    "a block": ended("{{ n }}", "{% set n %}{{ messages | length }}{% endset %}"),
    "a date": ended("{{ strftime_now('%Y-%m-%d') }}"),
    "a macro": ended("{{ 1 if n }}", "{% if tools %}{% macro n() %}{% endmacro %}{% endif %}"),
    "a macro that asks": "{% macro add_generation_prompt() %}{% endmacro %}" + ended(""),
    "chance": ended("{{ 'ab' | random }}"),
}
CALL = structs.replace(CALLED[1], content="First.")
CONVERSATIONS: tuple[Sequence[ChatMessage], ...] = (
    (QUESTION,),
    ANSWERED,
    CALLED,
    EARLIER_ANSWERS,
    (ChatMessage(role="system", content="Be kind."), *ANSWERED[:2], QUESTION, CALL, CALLED[2]),
)


def renderer_of(source: str, **options: Any) -> TemplateRenderer:
    return TemplateRenderer(ModelTemplate(source=source), everything(), **options)


def asking(asked: Job, **settings: Any) -> Job:
    return structs.replace(asked, settings=Settings(**settings))


@pytest.mark.parametrize("name", FIXED)
def test_a_prompt_of_options_is_fixed(name: str) -> None:
    assert has_fixed_prompt(jinja2.Environment().parse(FIXED[name]))


@pytest.mark.parametrize("name", NOT_FIXED)
def test_a_prompt_that_may_depend_on_the_conversation_is_not_fixed(name: str) -> None:
    assert not has_fixed_prompt(jinja2.Environment().parse(NOT_FIXED[name]))


@pytest.mark.parametrize("name", NAMES)
def test_an_opened_turn_is_what_the_template_writes_for_it(name: str) -> None:
    """For every effort, with and without tools, whichever thoughts are kept."""
    assert_opened_as_written(renderer_named(name))


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_prompt_is_what_the_template_writes(name: str) -> None:
    assert_opened_as_written(renderer_of(FIXED[name]))


def assert_opened_as_written(renderer: TemplateRenderer) -> None:
    compared = 0
    for effort, context in product((None, *renderer.efforts), (None, "all_turns", "current_turn")):
        for messages, tools in product(CONVERSATIONS, ([], PLACEHOLDER_TOOLS)):
            encoder = BudgetedEncoder(renderer.vocabulary)
            draft = renderer.probed.draft(messages, tools, encoder, effort, context)
            try:
                text = draft.write(messages)
            except InvalidRequest:
                continue
            assert draft.opened(messages, text) == draft.write(messages, prompt=True)
            compared += 1
    assert compared


# What a fixed prompt depends on

OPTIONS = """\
{%- set state = namespace(user=0) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set state.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.reasoning_content and (loop.index0 > state.user or preserve_thinking) -%}
{{- '<think>' + message.reasoning_content + '</think>' -}}
{%- endif -%}
{{- message.content + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' + size | default('') -}}
{{- 'off' if enable_thinking is defined and enable_thinking is false else 'on' -}}
{{- ' kept' if preserve_thinking else '' -}}
{%- endif -%}
"""
"""The prompt says which options the context is rendered with."""


def opened(renderer: TemplateRenderer, asked: Job) -> str:
    """What opens the assistant turn. Chains open it as whole contexts do."""
    rendering = renderer.render(asked)
    alone = renderer.render(structs.replace(asked, parent=None, input=tuple(asked.context())))
    assert rendering.prompt.ids() == alone.prompt.ids()
    return spelled(renderer, rendering.prompt).rpartition("assistant\n")[2]


def test_one_renderer_opens_turns_as_each_request_asks() -> None:
    """By the effort, and by whose thoughts are kept: in a chain, and in any order."""
    renderer = renderer_of(OPTIONS)
    expected = {
        (None, None): "on",
        ("none", None): "off",
        ("high", None): "on",
        (None, "all_turns"): "on kept",
        ("none", "all_turns"): "off kept",
        (None, "current_turn"): "on",
    }
    for turns in permutations(expected, 3):
        parent: ResponseState | None = None
        for effort, context in turns:
            asked = asking(job((user("a"),), parent), effort=effort, reasoning_context=context)
            assert opened(renderer, asked) == expected[effort, context]
            position = renderer.render(asked).with_answer(renderer.vocabulary.encode("b"))
            parent = after(asked, position, output=(message("assistant", "b"),))


def test_renderers_open_turns_with_the_variables_of_their_operators() -> None:
    renderers = [renderer_of(OPTIONS, variables={"size": size}) for size in ("small ", "large ")]
    renderers.append(renderer_of(OPTIONS, variables={"size": "", "enable_thinking": False}))
    kept = renderer_of(OPTIONS, keeps_thoughts=True)
    asked = [opened(renderer, job((user("a"),))) for renderer in (*renderers, kept)]
    assert asked == ["small on", "large on", "off", "on kept"]


def test_a_prompt_with_a_date_has_the_date_of_its_renderer() -> None:
    source = NOT_FIXED["a date"]
    days = [date(2026, 11, 18), date(2026, 11, 19)]
    found = [opened(renderer_of(source, today=day), job((user("a"),))) for day in days]
    assert found == ["2026-11-18", "2026-11-19"]


def test_a_prompt_that_depends_on_tools_is_written_for_each_conversation() -> None:
    renderer = renderer_of("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + NOT_FIXED["tools"])
    assert [opened(renderer, job((user("a"),), head=head)) for head in (HEAD, Head(), HEAD)] == [
        "x",
        "y",
        "x",
    ]


def test_an_option_that_a_template_changes_is_written_for_each_conversation() -> None:
    """Lists and dicts can be changed. No conversation sees what another one has put into them."""
    changed = "{% for m in messages %}{% set _ = roles.append(m.role) %}{% endfor %}"
    renderer = renderer_of(ended("{{ roles }}", changed), variables={"roles": []})
    answered = (user("a"), message("assistant", "b"))
    for _ in range(2):
        assert opened(renderer, job((user("a"),), head=Head())) == "['user']"
        assert opened(renderer, job(answered, head=Head())) == "['user', 'assistant']"


def test_a_prompt_that_cannot_be_found_is_written_for_each_conversation() -> None:
    """A template may refuse the one message with which its prompt is looked for."""
    refused = "{% if preserve_thinking and messages | length < 2 %}{{ raise_exception('Short.') }}{% endif %}"
    renderer = renderer_of(refused + OPTIONS)
    items = (user("a"), message("assistant", "b"), user("c"))
    assert opened(renderer, asking(job(items), reasoning_context="all_turns")) == "on kept"
    assert opened(renderer, asking(job(items), effort="none")) == "off"


# How often a template runs


def test_a_template_runs_twice_for_a_delta_and_once_for_a_whole_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with thoughts, which are looked for in what is written."""
    renderer = template_renderer("thinking")
    renderer.render(job((user("a"),), head=Head()))
    runs: list[str] = []
    render = renderer.template.render

    def counted(*args: Any, **named: Any) -> str:
        runs.append(render(*args, **named))
        return runs[-1]

    monkeypatch.setattr(renderer.template, "render", counted)
    first = job((user("a"),), head=Head())
    rendering = renderer.render(first)
    assert len(runs) == 1
    for answer, new in (
        ((message("assistant", "b"),), user("c")),
        ((thought("hm"), called("f", "{}", "1")), returned("3", "1")),
    ):
        runs.clear()
        parent = after(first, rendering.with_answer([300]), output=answer)
        assert renderer.render(job((new,), parent, Head())).fallback is None
        assert len(runs) == 2
