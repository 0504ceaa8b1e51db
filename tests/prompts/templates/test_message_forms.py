"""Messages are brought into forms that a template accepts, and lose no text."""

import pytest

from slipring.prompts.templates.chat_messages import ChatCall, ChatMessage
from slipring.prompts.templates.message_forms import ACCEPTS_ALL, MessageForms
from tests.prompts.templates.family_renderers import family_renderer
from tests.prompts.templates.family_templates import NAMES
from tests.prompts.templates.test_template_renderer import of_source, spelled, whole
from tests.prompts.test_rendering import user

SYSTEM, LATE = ChatMessage(role="system", content="S"), ChatMessage(role="system", content="L")
FIRST, SECOND = ChatMessage(role="user", content="A"), ChatMessage(role="user", content="B")
ANSWER = ChatMessage(role="assistant", content="C")
CALLS = ChatMessage(
    role="assistant", thoughts="T", calls=(ChatCall("a" * 9, "f", {"a": 1}), ChatCall("b" * 9, "g", {}))
)
OUTPUTS = [
    ChatMessage(role="tool", content=text, call_id=id, name=name)
    for id, name, text in (("a" * 9, "f", "X"), ("b" * 9, "g", "Y"))
]
CONVERSATION = [SYSTEM, LATE, FIRST, SECOND, CALLS, *OUTPUTS, LATE, ANSWER, FIRST]
RESTRICTED = MessageForms(
    system=False,
    systems=False,
    late_system=False,
    users=False,
    several_calls=False,
    outputs=False,
)


def roles(forms: MessageForms, *messages: ChatMessage) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in forms.adapt(messages)]


def test_a_template_that_accepts_all_gets_the_messages_as_they_are() -> None:
    assert ACCEPTS_ALL.adapt(CONVERSATION) is CONVERSATION


def test_system_messages_are_joined_or_become_the_users() -> None:
    conversation = (SYSTEM, LATE, FIRST, LATE)
    assert roles(MessageForms(systems=False), *conversation) == [
        ("system", "S\n\nL"),
        ("user", "A"),
        ("system", "L"),
    ]
    assert roles(MessageForms(late_system=False), *conversation)[2:] == [("user", "A"), ("user", "L")]
    assert roles(MessageForms(system=False), SYSTEM, FIRST) == [("user", "S"), ("user", "A")]
    assert roles(MessageForms(systems=False), SYSTEM, FIRST) == [("system", "S"), ("user", "A")]


def test_messages_of_the_user_are_joined() -> None:
    assert roles(MessageForms(users=False), FIRST, SECOND, ANSWER, FIRST) == [
        ("user", "A\n\nB"),
        ("assistant", "C"),
        ("user", "A"),
    ]


def test_each_call_gets_a_message_of_its_own_before_its_output() -> None:
    split = MessageForms(several_calls=False).adapt([CALLS, *OUTPUTS, ANSWER])
    assert [
        (each.role, [call.name for call in each.calls], each.thoughts, each.content) for each in split
    ] == [
        ("assistant", ["f"], "T", ""),
        ("tool", [], "", "X"),
        ("assistant", ["g"], "", ""),
        ("tool", [], "", "Y"),
        ("assistant", [], "", "C"),
    ]
    waiting = MessageForms(several_calls=False).adapt([CALLS, OUTPUTS[0]])
    assert [each.role for each in waiting] == ["assistant", "tool", "assistant"]


def test_outputs_become_messages_of_the_user() -> None:
    assert roles(MessageForms(outputs=False), CALLS, *OUTPUTS)[1:] == [
        ("user", "<tool_response>\nX\n</tool_response>\n<tool_response>\nY\n</tool_response>")
    ]


@pytest.mark.parametrize(
    "forms", [RESTRICTED, MessageForms(users=False, user_after_outputs=False, reply="OK.")]
)
def test_no_text_is_lost(forms: MessageForms) -> None:
    written = "".join(message.content for message in forms.adapt(CONVERSATION))
    assert all(text in written for text in "SLABXYC")


@pytest.mark.parametrize("family", NAMES)
def test_every_family_writes_a_conversation_of_all_forms(family: str) -> None:
    renderer = family_renderer(family)
    written = renderer.probed._written(CONVERSATION)
    assert written is not None
    assert all(text in written for text in ("S", "A", "B", "X", "Y", "C"))


def test_the_forms_of_a_template_are_found() -> None:
    assert family_renderer("qwen3").forms == ACCEPTS_ALL
    ministral = family_renderer("ministral_3").forms
    assert (ministral.users, ministral.late_system, ministral.several_calls) == (False, False, True)
    assert not ministral.user_after_outputs
    assert not family_renderer("llama_3_1").forms.several_calls
    without_system = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"
    )
    assert not of_source(without_system).forms.system


def test_a_template_that_refuses_texts_gets_lists_of_parts() -> None:
    strict = (
        "{% for m in messages %}{% if m.content is string %}{{ raise_exception('no list') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    writes = of_source(strict)
    assert "user\nHello" in spelled(writes, whole(writes, user("Hello")).context)
