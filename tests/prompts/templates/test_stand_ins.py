"""Stand-ins keep the form of a conversation, at a size that does not grow."""

from hypothesis import given
from hypothesis import strategies as st

from slipring.prompts.templates.chat_messages import MessageBuilder
from slipring.prompts.templates.stand_ins import ALL_PLACEHOLDERS, answer_stand_in, stand_in
from slipring.protocol.items import Item
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
