"""The sandbox: conventions of chat templates, and what they cannot do."""

from collections.abc import Generator
from datetime import date
from time import perf_counter
from typing import Any

import pytest

from slipring.errors import InvalidRequest
from slipring.prompts.templates.jinja import Template, TemplateError, Yielding

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": " <b>é & 'x'</b> ", "n": {"b": 1, "a": [None]}}]

CONVENTIONS = {
    "{{ messages[0].content }}": " <b>é & 'x'</b> ",
    "{{ messages[0].n | tojson }}": '{"b": 1, "a": [null]}',
    "{{ messages[0].content | tojson }}": "\" <b>é & 'x'</b> \"",
    "{{ 'é' | tojson(ensure_ascii=true) }}": '"\\u00e9"',
    "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}": '{"a":2,"b":1}',
    "{{ [1] | tojson(indent=2) }}": "[\n  1\n]",
    "{{ bos_token }}{{ eos_token }}": "<s></s>",
    "{{ nothing }}{{ 'no' if nothing is not defined }}{{ messages[0].nothing or 'no' }}": "nono",
    "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}": "TrueTrueFalse",
    "{{ ' a b '.strip().split(' ')[-1] }}{{ 'ab'.startswith('a') }}": "bTrue",
    "{{ 'a</t>b'.split('</t>')[0].rstrip('x').lstrip() }}{{ 'a' in 'ab' }}": "aTrue",
    "{% for key, value in messages[0].n.items() %}{{ key }}{% endfor %}": "ba",
    "{% set ns = namespace(a=1) %}{% for i in [2] %}{% set ns.a = i %}{% endfor %}{{ ns.a }}": "2",
    "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}"
    "{% endfor %}": "02",
    "a\n  {% if true %}\nb\n  {% endif %}\nc\n": "a\nb\nc",
    "{{ messages[::-1][0].role }}{{ messages | length }}": "user1",
    "a\n {%- generation -%} \nb {% endgeneration %}\nc": "ab c",
    "a {% generation %}\nb{%- endgeneration %}": "a b",
    "{% macro f(x, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}": "12",
    "{{ messages[0].__class__ }}": "",
}


@pytest.mark.parametrize("source", CONVENTIONS)
def test_templates_find_what_their_conventions_promise(source: str) -> None:
    template = Template(source, bos_token="<s>", eos_token="</s>")
    assert template.render(MESSAGES) == CONVENTIONS[source]


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'a' ", "{% for x in y %}", "{% wat %}"])
def test_a_template_that_cannot_be_parsed_is_refused_in_one_line(source: str) -> None:
    with pytest.raises(TemplateError, match=r"^The chat template cannot be parsed: .+$"):
        Template(source)


def test_what_a_template_refuses_the_client_is_told() -> None:
    template = Template("{{ raise_exception('No ' + messages[0].role + 's.') }}")
    with pytest.raises(InvalidRequest, match=r"^The model's template refuses this conversation: No users\.$"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing() }}",
        "{{ messages[0].content | nothing }}",
        "{{ messages.append() }}",
        "{{ messages[0].__init__() }}",
        "{% include 'elsewhere' %}",
        "{{ range(1000000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_cannot_do_ends_in_one_line(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^The model's template cannot write this conversation: .+$"):
        Template(source).render(MESSAGES)


def test_a_template_that_does_not_end_is_ended() -> None:
    loops = "{% for i in range(99999) %}" * 3 + "{{ i }}" + "{% endfor %}" * 3
    started = perf_counter()
    with pytest.raises(InvalidRequest, match="fuel"):
        Template(loops).render(MESSAGES)
    assert perf_counter() - started < 5


def test_a_long_conversation_takes_a_small_part_of_what_is_allowed() -> None:
    ten_times = Template(
        "{% for _ in range(10) %}{% for message in messages %}{{ '<' + message.role + '>' }}"
        "{% if message.role == 'user' and not message.n %}{{ message.content | trim }}"
        "{% else %}{{ message.content }}{{ message.n | tojson }}{% endif %}{% endfor %}{% endfor %}"
    )
    long = [{**MESSAGES[0], "content": "word " * 800} for _ in range(200)]
    assert len(ten_times.render(long)) > 10 * 200 * 4000


def test_the_day_is_what_the_renderer_was_given_and_unknown_otherwise() -> None:
    source = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'some day' }}"
    assert Template(source, today=date(2026, 11, 15)).render([]) == "15 Nov 2026"
    assert Template(source).render([]) == "some day"


def test_lists_let_other_threads_in_and_are_lists_to_templates_all_the_same() -> None:
    fetched: list[str] = []

    class Watched(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            fetched.append(key)
            return super().__getitem__(key)

    calls = Yielding([{"name": "f"}, {"name": "g"}])
    messages = [Watched(role="user", content=text, calls=calls) for text in "abc"]
    source = (
        "{{ messages|length }}{{ messages[0].content }}{{ messages[-1].content }}{{ messages[1:]|length }}"
        "{{ messages is sequence }}{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ m.content }}"
        "{% for c in m.calls %}{{ c.name }}{% endfor %}{% endfor %}{{ messages[0].calls|tojson }}"
        "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}"
        "{{ messages|map(attribute='content')|join('-') }}"
        "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}"
    )
    plain = [dict(message, calls=list(calls)) for message in messages]
    environment = Template(source)
    assert environment.render(messages) == environment.render(plain)
    assert "content" in fetched
    steps = iter(Yielding([1, 2]))
    assert isinstance(steps, Generator)  # of Python, which other threads can interrupt
