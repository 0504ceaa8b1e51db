"""Chat templates run in a sandbox with the usual conventions."""

from collections.abc import Generator
from datetime import date
from typing import Any

import pytest

from slipring.base.errors import InvalidRequest
from slipring.prompts.templates.jinja_engines import (
    ChatTemplate,
    Jinja2Template,
    OutOfFuel,
    TemplateError,
    YieldingList,
)

ONLY_JINJA2 = "{{ '%s' % '' }}"
"""Writes nothing, with an operator that minijinja does not have."""
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
def test_templates_have_the_usual_variables_filters_and_functions(source: str) -> None:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert template.render(MESSAGES) == CONVENTIONS[source]


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a' ", "{% for x in y %}", "{% wat %}", "{{ 1 | nothing }}"]
)
def test_a_template_that_cannot_be_parsed_raises_with_a_message_of_one_line(source: str) -> None:
    with pytest.raises(TemplateError, match=r"^The chat template cannot be parsed: .+$"):
        ChatTemplate(source)


def test_the_message_of_raise_exception_reaches_the_client() -> None:
    template = ChatTemplate("{{ raise_exception('No ' + messages[0].role + 's.') }}")
    with pytest.raises(InvalidRequest, match=r"^The model's template refuses this conversation: No users\.$"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing() }}",
        "{{ messages.append() }}",
        "{{ messages[0].__init__() }}",
        "{% include 'elsewhere' %}",
        "{{ range(1000000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_failing_template_raises_with_a_message_of_one_line(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^The model's template cannot write this conversation: .+$"):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_that_never_ends_is_unusable() -> None:
    loops = "{% for i in range(99999) %}" * 3 + "{{ i }}" + "{% endfor %}" * 3
    with pytest.raises(TemplateError, match="too many steps"):
        ChatTemplate(loops)


def test_a_conversation_that_takes_too_many_steps_is_refused() -> None:
    each = "{% for i in range(99999) %}{{ i }}{% endfor %}"
    template = ChatTemplate("{% if messages | length > 9 %}" + each * 99 + "{% endif %}")
    assert template.engine == "minijinja"
    with pytest.raises(InvalidRequest, match="too many steps"):
        template.render(MESSAGES * 10)


@pytest.mark.parametrize(
    "each",
    [
        "{% for m in messages[1:] %}{% endfor %}",
        "{% for i in range(50) %}{% endfor %}",
        "{{ messages[0].role }}" * 50,
        "{{ messages[0]['role'] }}" * 50,
        "{{ 'a'.upper() }}" * 50,
    ],
)
def test_steps_are_counted_in_jinja2(each: str) -> None:
    template = Jinja2Template(each, None)
    values = {"messages": YieldingList(MESSAGES * 51), "tools": None}
    template.render(values, fuel=250)
    with pytest.raises(OutOfFuel):
        template.render(values, fuel=49)


def test_a_template_that_writes_too_much_is_refused() -> None:
    source = (
        ONLY_JINJA2
        + "{% for i in range(messages[0].content | length * 36) %}{{ messages[0].content }}{% endfor %}"
    )
    with pytest.raises(InvalidRequest, match="more than 33554432 characters"):
        ChatTemplate(source).render([{"role": "user", "content": "x" * 1000}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ none is iterable }}",
        "{{ tools is iterable }}",
        "{% set xs = [] %}{% set _ = xs.append(messages[0].role) %}{{ xs[0] }}",
        "{{ '%s=%d' % ('a', 1) }}",
        "{{ none }}",
        "{{ messages[0].n }}",
        "{{ '{}'.format('x') }}",
    ],
)
def test_templates_write_what_they_write_in_jinja2(source: str) -> None:
    expected = Jinja2Template(source, None).render({"messages": MESSAGES, "tools": None})
    assert ChatTemplate(source).render(MESSAGES) == expected


def test_a_conversation_with_which_minijinja_fails_is_written_by_jinja2() -> None:
    template = ChatTemplate("{% if messages[0].n %}{{ '%s!' % messages[0].role }}{% endif %}")
    assert template.engine == "minijinja"
    assert template.render(MESSAGES) == "user!"


TOOL = {"type": "function", "function": {"name": "f", "description": "Does it."}}


@pytest.mark.parametrize(
    "source",
    [
        "{% set _ = tools[0].function.pop('description') %}{{ tools | tojson }}",
        "{% for t in tools %}{% set _ = t['update']({'n': 'x'}) %}{% endfor %}{{ tools | tojson }}",
        "{% set _ = seen.append(messages[0].content) %}{{ seen }}",
        "{% set _ = options.names.append(messages[0].role) %}{{ options }}",
        "{% set _ = messages.insert(0, {'role': 'system'}) %}{{ messages | tojson }}",
        "{% set _ = messages[0].update({'role': messages[0].role ~ '!'}) %}{{ messages[0].role }}",
    ],
)
@pytest.mark.parametrize(
    "end", ["", ONLY_JINJA2, "{% if add_generation_prompt %}" + ONLY_JINJA2 + "{% endif %}"]
)
def test_no_run_sees_what_another_one_changed(source: str, end: str) -> None:
    """Also where one library fails and the other one runs the template again."""
    template = ChatTemplate(source + end)
    messages, tools = [{"role": "user", "content": "x"}], [TOOL]
    variables: dict[str, Any] = {"seen": [], "options": {"names": []}}
    written = {
        template.render(messages, tools, add_generation_prompt=asks, variables=variables)
        for asks in (False, True, False)
    }
    assert len(written) == 1
    assert (messages, variables) == (
        [{"role": "user", "content": "x"}],
        {"seen": [], "options": {"names": []}},
    )
    assert TOOL["function"] == {"name": "f", "description": "Does it."}


def test_a_template_that_loops_over_tools_unasked_gets_an_empty_list() -> None:
    template = ChatTemplate("{% for tool in tools %}{{ tool.function.name }}{% endfor %}.")
    assert template.render(MESSAGES) == "."
    assert template.render(MESSAGES, [{"function": {"name": "f"}}]) == "f."


def test_further_variables_reach_the_template() -> None:
    template = ChatTemplate(
        "{{ 'thinks' if enable_thinking else 'answers' }} {{ bos_token }}", bos_token="<s>"
    )
    assert template.render(MESSAGES, variables={"enable_thinking": True, "bos_token": "x"}) == "thinks <s>"
    assert template.render(MESSAGES) == "answers <s>"


def test_a_long_conversation_uses_a_small_part_of_the_fuel() -> None:
    ten_times = ChatTemplate(
        "{% for _ in range(10) %}{% for message in messages %}{{ '<' + message.role + '>' }}"
        "{% if message.role == 'user' and not message.n %}{{ message.content | trim }}"
        "{% else %}{{ message.content }}{{ message.n | tojson }}{% endif %}{% endfor %}{% endfor %}"
    )
    long = [{**MESSAGES[0], "content": "word " * 800} for _ in range(200)]
    assert len(ten_times.render(long)) > 10 * 200 * 4000


def test_strftime_now_formats_the_given_date_and_is_undefined_without_one() -> None:
    source = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'some day' }}"
    assert ChatTemplate(source, today=date(2026, 11, 15)).render([]) == "15 Nov 2026"
    assert ChatTemplate(source).render([]) == "some day"


def test_yielding_lists_are_lists_to_templates() -> None:
    fetched: list[str] = []

    class Watched(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            fetched.append(key)
            return super().__getitem__(key)

    calls = YieldingList([{"name": "f"}, {"name": "g"}])
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
    environment = ChatTemplate(source)
    assert environment.render(messages) == environment.render(plain)
    assert "content" in fetched
    steps = iter(YieldingList([1, 2]))
    assert isinstance(steps, Generator)  # Python code, which the interpreter can interrupt for other threads


def test_a_template_that_minijinja_cannot_parse_is_run_by_jinja2() -> None:
    template = ChatTemplate("{% for message in messages: %}{{ message.role }}{% endfor %}")
    assert template.engine == "Jinja2"
    assert template.render(MESSAGES) == "user"


def test_tools_with_which_a_template_fails_hide_no_difference() -> None:
    """Hermes' template fails for a union of types, and reads `items` of a schema, which Jinja2 takes for the
    method of a mapping."""
    each = "{{ p.type.upper() }} {{ 'of a kind' if p.items is mapping else 'any' }}"
    source = (
        "{% for tool in tools or [] %}{% for p in tool.function.parameters.properties.values() %}"
        + each
        + "{% endfor %}{% endfor %}"
    )
    array = {"type": "array", "items": {"type": "integer"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": array}}}}]
    expected = Jinja2Template(source, None).render({"messages": MESSAGES, "tools": tools})
    template = ChatTemplate(source)
    assert template.render(MESSAGES, tools) == expected
    assert template.engine == "Jinja2"
