"""Messages that are sent again: translated once, and to the same items as without that."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.base.errors import ApiError, InvalidRequest
from slipring.protocol.chat_completions.translation import ChatTranslation
from slipring.protocol.endpoints.pieces import NOTHING_KNOWN, Known, Piece, read_pieces
from slipring.protocol.endpoints.translation import Translation
from slipring.protocol.events import Error
from slipring.protocol.items import MOST_ITEMS, Item
from slipring.protocol.messages.translation import MessagesTranslation
from slipring.protocol.requests import ResentHistory

Json = dict[str, Any]
IDS = st.sampled_from("ab")
WORDS = st.sampled_from(["", "one", "two"])
CUSTOM = {"type": "custom", "custom": {"name": "run", "input": "x"}}


def marked(block: Json, is_marked: bool) -> Json:
    return {**block, "cache_control": {"type": "ephemeral"}} if is_marked else block


def text_blocks() -> st.SearchStrategy[Json]:
    return st.builds(lambda text, mark: marked({"type": "text", "text": text}, mark), WORDS, st.booleans())


def results() -> st.SearchStrategy[Json]:
    return st.builds(
        lambda id, text, mark: marked({"type": "tool_result", "tool_use_id": id, "content": text}, mark),
        IDS,
        WORDS,
        st.booleans(),
    )


ANSWERS = st.lists(
    text_blocks()
    | st.builds(lambda id: {"type": "tool_use", "id": id, "name": "f", "input": {}}, IDS)
    | st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, WORDS),
    max_size=3,
)
MESSAGES: st.SearchStrategy[Json] = (
    st.builds(lambda content: {"role": "user", "content": content}, st.lists(text_blocks() | results()))
    | st.builds(lambda content: {"role": "assistant", "content": content}, ANSWERS)
    | st.builds(
        lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), WORDS
    )
    | st.just({"role": "critic", "content": "x"})
)


def call(id: str | None, is_custom: bool) -> Json:
    made = CUSTOM if is_custom else {"type": "function", "function": {"name": "run", "arguments": "{}"}}
    return made if id is None else {"id": id, **made}


CHAT: st.SearchStrategy[Json] = (
    st.builds(lambda text: {"role": "user", "content": text}, WORDS)
    | st.builds(
        lambda calls, text, thought: {
            **{"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": calls}
        },
        st.lists(st.builds(call, st.none() | IDS, st.booleans()), max_size=2),
        WORDS,
        WORDS,
    )
    | st.builds(lambda id, text: {"role": "tool", "tool_call_id": id, "content": text}, IDS, WORDS)
    | st.builds(lambda text: {"role": "tool", "name": "run", "content": text}, WORDS)
    | st.builds(lambda text: {"role": "tool", "content": text}, WORDS)
    | st.just({"role": "function", "content": "x"})
)


def histories(messages: st.SearchStrategy[Json]) -> st.SearchStrategy[list[list[Json]]]:
    """Histories that share messages, in any order."""
    return st.lists(messages, min_size=1, max_size=8).flatmap(
        lambda pool: st.lists(st.lists(st.sampled_from(pool), max_size=8), min_size=2, max_size=6)
    )


def read(translation: Translation, history: list[Json], known: Known) -> tuple[object, Known]:
    """What a request becomes, or the error that it gets; and its pieces."""
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": history}).encode()
    try:
        create = translation.read(body, known)
        assert isinstance(create, ResentHistory)
        items = create.read_items(known)
    except ApiError as error:
        return (type(error), error.message, error.param), NOTHING_KNOWN
    places = [
        translation.error(Error.of(InvalidRequest("x", param=f"input[{at}]"))).body
        for at in range(len(items))
    ]
    return (create.first_call, create.input, items, create.content_digests, places), create.pieces


def check_same(make: Any, sent: list[list[Json]]) -> None:
    known: dict[bytes, Item | Piece] = {}
    for history in sent:
        cold, _ = read(make(), history, NOTHING_KNOWN)
        warm, pieces = read(make(), history, known)
        assert warm == cold
        known |= pieces


@given(histories(MESSAGES))
def test_messages_that_were_sent_before_become_the_same_items(sent: list[list[Json]]) -> None:
    check_same(lambda: MessagesTranslation("req", lambda signature: True), sent)


@given(histories(CHAT))
def test_messages_of_a_chat_that_were_sent_before_become_the_same_items(sent: list[list[Json]]) -> None:
    check_same(lambda: ChatTranslation("fp"), sent)


USER: Json = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}


@pytest.mark.parametrize(
    ("make", "history"),
    [
        (
            lambda: MessagesTranslation("req"),
            [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}],
        ),
        (
            lambda: ChatTranslation("fp"),
            [
                USER,
                {"role": "assistant", "tool_calls": [call("a", False)]},
                {"role": "tool", "tool_call_id": "a", "content": "x"},
            ],
        ),
    ],
)
def test_a_message_is_translated_once(make: Any, history: list[Json]) -> None:
    _, pieces = read(make(), history, NOTHING_KNOWN)
    _, again = read(make(), [*history, USER, {"role": "user", "content": "more"}], pieces)
    assert [again[key] is piece for key, piece in pieces.items()] == [True, True, True]
    assert len(again) == 4


def test_calls_with_other_numbers_are_translated_again() -> None:
    calls = [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]
    _, pieces = read(MessagesTranslation("req"), [USER, *calls], NOTHING_KNOWN)
    create = MessagesTranslation("req").read(
        json.dumps({"model": "m", "max_tokens": 9, "messages": [USER, *calls, *calls]}).encode(), pieces
    )
    assert [item.call_id for item in create.items] == [None, "call_0", "call_0", "call_1", "call_1"]


def test_pieces_have_no_more_items_than_a_request_may_have() -> None:
    item = b'{"type":"message","role":"user","content":"x"}'
    pieces = [Piece(b"", (item,) * (MOST_ITEMS // 2), None) for _ in range(3)]
    assert len(read_pieces(pieces[:2])) == MOST_ITEMS
    with pytest.raises(ApiError, match="more than 20000 items"):
        read_pieces(pieces)


def test_an_error_names_an_item_by_its_place_among_all() -> None:
    item = b'{"type":"message","role":"user","content":"x"}'
    bad = b'{"type":"message","role":"user","content":1}'
    with pytest.raises(ApiError) as refusal:
        read_pieces([Piece(b"", (item, item), None), Piece(b"", (item, bad), None)])
    assert refusal.value.param == "input[3].content"
