"""Messages that are sent again: translated once, and to the same items as without that."""

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.base.errors import ApiError, InvalidRequest
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.protocol.endpoints.translation import Translation
from slipring.protocol.events import Error
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import MOST_ITEMS, Item
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.protocol.requests import NOTHING_KNOWN, Known, Piece, ResentHistory, read_pieces

Json = dict[str, Any]
IDS = st.sampled_from("abc")
WORDS = st.sampled_from(["", "one", "two"])
Step = list[Json]
"""Messages that belong together: a call and its result, for example."""


def marked(block: Json, is_marked: bool) -> Json:
    return {**block, "cache_control": {"type": "ephemeral"}} if is_marked else block


@st.composite
def messages_steps(draw: st.DrawFn) -> Step:
    texts = [{"type": "text", "text": text} for text in draw(st.lists(WORDS, max_size=2))]
    kind = draw(st.sampled_from(["user", "text", "system", "odd", "calls", "calls", "calls"]))
    if kind == "user":
        return [{"role": "user", "content": [marked(block, draw(st.booleans())) for block in texts]}]
    if kind == "odd":
        return [{"role": draw(st.sampled_from(["assistant", "critic"])), "content": texts}]
    if kind != "calls":
        return [{"role": "user" if kind == "text" else "system", "content": draw(WORDS)}]
    ids = draw(st.lists(IDS, min_size=1, max_size=2))
    thought = {"type": "thinking", "thinking": draw(WORDS), "signature": "s"}
    calls = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]
    results = [
        marked({"type": "tool_result", "tool_use_id": id, "content": draw(WORDS)}, draw(st.booleans()))
        for id in draw(st.permutations(ids))
    ]
    answer = {"role": "assistant", "content": [thought, *texts, *calls]}
    return [answer, {"role": "user", "content": [*results, *texts]}]


def call(id: str | None, is_custom: bool) -> Json:
    function = {"type": "function", "function": {"name": "run", "arguments": "{}"}}
    made = {"type": "custom", "custom": {"name": "run", "input": "x"}} if is_custom else function
    return made if id is None else {"id": id, **made}


@st.composite
def chat_steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["user", "odd", "calls", "calls", "calls"]))
    if kind == "user":
        return [{"role": "user", "content": draw(WORDS)}]
    if kind == "odd":
        return [{"role": draw(st.sampled_from(["function", "tool"])), "content": "x"}]
    ids = draw(st.lists(IDS, min_size=1, max_size=2))
    calls = [call(draw(st.sampled_from([id, id, None])), draw(st.booleans())) for id in ids]
    answer = {"role": "assistant", "content": draw(WORDS), "tool_calls": calls}
    named: list[Json] = [{"tool_call_id": id} for id in draw(st.permutations(ids))]
    results = [
        {"role": "tool", "content": draw(WORDS), **draw(st.sampled_from([name, name, {"name": "run"}, {}]))}
        for name in named
    ]
    return [{**answer, "reasoning_content": draw(WORDS)}, *results]


@st.composite
def histories(draw: st.DrawFn, steps: st.SearchStrategy[Step]) -> list[list[Json]]:
    """Histories of steps that they share, in any order."""
    pool = draw(st.lists(steps, min_size=1, max_size=5))
    chosen = draw(st.lists(st.lists(st.sampled_from(pool), max_size=5), min_size=2, max_size=6))
    end = {"role": "user", "content": "end"}
    return [[message for step in history for message in step] + [end] for history in chosen]


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
    return (create.first_call, items, list(map(content_digest, items)), places), create.pieces


def check_same(make: Any, sent: list[list[Json]]) -> None:
    known: dict[bytes, Item | Piece] = {}
    for history in sent:
        cold, _ = read(make(), history, NOTHING_KNOWN)
        warm, pieces = read(make(), history, known)
        assert warm == cold
        known |= pieces


@given(histories(messages_steps()))
def test_messages_that_were_sent_before_become_the_same_items(sent: list[list[Json]]) -> None:
    check_same(lambda: MessagesTranslation("req", lambda signature: True), sent)


@given(histories(chat_steps()))
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


def test_a_result_is_of_the_kind_of_its_call() -> None:
    def sent(is_custom: bool) -> list[Json]:
        answer = {"role": "assistant", "tool_calls": [call("a", is_custom)]}
        return [USER, answer, {"role": "tool", "tool_call_id": "a", "content": "x"}]

    _, pieces = read(ChatTranslation("fp"), sent(False), NOTHING_KNOWN)
    check_same(lambda: ChatTranslation("fp"), [sent(False), sent(True)])
    create = ChatTranslation("fp").read(json.dumps({"messages": sent(True)}).encode(), pieces)
    assert create.items[-1].type == "custom_tool_call_output"


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


def steps_of_error(translation: Translation, names: int) -> int:
    """How many steps the interpreter takes for an error that names so many items."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return count

    named = " ".join(["'input[7]'"] * names)
    error = Error.of(InvalidRequest(f"The model {named} does not exist."))
    before = sys.gettrace()
    sys.settrace(count)
    try:
        translation.error(error)
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("make", [lambda: MessagesTranslation("req"), lambda: ChatTranslation("fp")])
def test_an_item_that_an_error_names_is_not_looked_for_among_all(make: Any) -> None:
    """Clients write what errors quote, such as the name of a model, and errors are written on the event
    loop."""

    def added_by_names(messages: int) -> int:
        translation: Translation = make()
        read(translation, [USER] * messages, NOTHING_KNOWN)
        few, many = [steps_of_error(translation, names) for names in (2, 20)]
        return many - few

    added_by_names(10)  # what is kept of patterns
    assert added_by_names(1000) == added_by_names(10) > 0
