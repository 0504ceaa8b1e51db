"""Stand-ins keep the form of a conversation, at a size that does not grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.prompts.templates.chat_messages import ChatMessage, MessageBuilder
from slipring.prompts.templates.stand_ins import (
    ALL_PLACEHOLDERS,
    answer_stand_in,
    stand_in,
    with_earlier_calls,
)
from slipring.protocol.items.items import Item
from tests.prompts.templates.test_chat_messages import thought
from tests.prompts.vocabulary import call, message, output

ROLES = st.sampled_from(["user", "assistant", "system"])
TURNS: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(
        st.builds(message, ROLES, st.sampled_from(["", "a"])),
        st.just(thought("t")),
        st.just(call("f")),
        st.just(output("o")),
    ),
    max_size=8,
)


@given(TURNS, TURNS)
def test_the_stand_in_of_a_stand_in_plus_new_messages_is_that_of_the_whole(
    before: list[Item], after: list[Item]
) -> None:
    builder = MessageBuilder({}).add(before)
    first = builder.messages
    more = MessageBuilder(builder.pending).add(after).messages
    if first and more and first[-1].role == more[0].role == "assistant":
        return  # within the whole they are one message
    assert stand_in([*stand_in(first), *more]) == stand_in([*first, *more])


@given(TURNS)
def test_a_stand_in_ends_with_the_same_role_and_contains_only_placeholders(items: list[Item]) -> None:
    real = MessageBuilder({}).add(items).messages
    stands = stand_in(real)
    assert [each.role for each in stands[-1:]] == [each.role for each in real[-1:]]
    assert {each.content for each in stands} <= {*ALL_PLACEHOLDERS, ""}


def test_a_stand_in_does_not_grow_with_the_conversation() -> None:
    turn = [message("user", "u"), thought("t"), call("f"), output("o"), message("assistant", "a")]
    assert len(stand_in(MessageBuilder({}).add(turn * 50).messages)) == 4
    loop = [message("user", "u"), *[thought("t"), call("f"), output("o")] * 50]
    asked, called, returned = stand_in(MessageBuilder({}).add(loop).messages)
    assert (asked.role, called.calls[0].name, bool(called.thoughts), returned.name) == (
        "user",
        "f",
        True,
        "f",
    )


def test_an_answer_has_a_stand_in_only_if_it_is_one_assistant_message() -> None:
    answer = answer_stand_in(MessageBuilder({}).add([call("f"), call("g")]).messages)
    assert answer is not None
    assert [each.name for each in answer.calls] == ["f", "g"]
    assert answer.calls[0].arguments != answer.calls[1].arguments
    assert answer_stand_in([]) is not None
    assert (
        answer_stand_in(MessageBuilder({}).add([message("assistant", "a"), message("user", "b")]).messages)
        is None
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("system user", "system user assistant tool user"),
        ("system user assistant", "system user assistant tool assistant"),
        ("user assistant system", "user assistant tool user assistant system"),
        ("system assistant system", "system assistant tool assistant system"),
        ("assistant tool system", "assistant tool assistant tool system"),
    ],
)
def test_earlier_calls_do_not_stand_between_the_last_message_and_the_answer(before: str, after: str) -> None:
    """Without a user's message either: the next answer would follow an output, and be opened otherwise."""
    messages = tuple(ChatMessage(role=role, content="x") for role in before.split())  # type: ignore[arg-type]
    assert [message.role for message in with_earlier_calls(messages, 1)] == after.split()
    assert with_earlier_calls(messages, 0) == messages
