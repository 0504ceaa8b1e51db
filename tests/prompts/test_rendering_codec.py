"""A chain whose contexts were packed and unpacked continues like the original."""

import struct
import zlib
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Positions, ResponseState
from slipring.engines.llama.slots_and_saved_contexts import shared_tokens
from slipring.prompts import rendering_codec
from slipring.prompts.rendering import EncodedIds, Preface, Rendered, Renderer, Rendering, empty
from slipring.prompts.rendering_codec import RenderingCodec
from slipring.prompts.templates.chat_messages import ChatCall, ChatMessage, PendingCall
from slipring.prompts.templates.template_renderer import Tail
from slipring.protocol.requests import TEXT, TextFormat
from tests.prompts import test_rendering
from tests.prompts.template_texts import TEMPLATES, template_renderer
from tests.prompts.templates import test_template_renderer
from tests.prompts.templates.test_chat_messages import thought
from tests.prompts.templates.test_template_renderer import called, head_for, returned
from tests.prompts.test_rendering import HEAD, SCHEMA, TOOLS, Items, after, job, user
from tests.prompts.vocabulary import RENDERERS, message, renderer

POSITIONS: Positions = RenderingCodec()


def test_packed_ids_are_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    step = EncodedIds.of([1, 2, 0x01020304])
    packed = rendering_codec._pack_ids(step)
    assert packed == bytes([1, 0, 0, 0, 2, 0, 0, 0, 4, 3, 2, 1])
    monkeypatch.setattr(rendering_codec, "_IS_LITTLE_ENDIAN", False)
    assert rendering_codec._pack_ids(step) == struct.pack(">3I", *struct.unpack("<3I", packed))
    assert list(step.ids) == [1, 2, 0x01020304]


OTHER_HEAD = Head("Other.", TOOLS)


class Turn(NamedTuple):
    """A turn of a chain."""

    input: Items
    emitted: list[int] | None = None
    """The ids that the model emits; None: nothing is generated."""
    output: Items = ()
    head: Head = HEAD
    format: TextFormat = TEXT
    by_another: bool = False
    """Whether another model renders and answers this turn."""
    is_lost: bool = False
    """Whether the position of this turn is lost."""


def chain_of(writes: Renderer, turns: list[Turn], parent: ResponseState | None = None) -> list[ResponseState]:
    """The states of a chain, up to the first turn that the renderer refuses."""
    states: list[ResponseState] = []
    for turn in turns:
        step = job(turn.input, parent, turn.head, turn.format)
        try:
            rendering = (renderer("llama3 in small") if turn.by_another else writes).render(step)
        except InvalidRequest:
            break
        position = rendering.context if turn.emitted is None else rendering.with_answer(turn.emitted)
        parent = after(step, None if turn.is_lost else position, output=turn.output)
        states.append(parent)
    return states


def position_of(state: ResponseState | None) -> Rendered | None:
    if state is None or state.position is None:
        return None
    assert isinstance(state.position, Rendered)
    return state.position


def packed(state: ResponseState) -> bytes:
    position = position_of(state)
    assert position is not None
    data = POSITIONS.pack(position, position_of(state.parent))
    assert data is not None
    return data


def read_back(state: ResponseState, parent: ResponseState | None) -> ResponseState:
    """A state as a store returns it: equal to the original, but made of new objects."""
    head = Head(state.head.instructions, state.head.tools)
    position = None
    if state.position is not None:
        position = POSITIONS.unpack(packed(state), position_of(parent), head)
        assert position is not None
    return ResponseState(
        response=state.response,
        parent=parent,
        head=head,
        input=state.input,
        output=state.output,
        carry=state.carry,
        position=position,
    )


def all_read_back(states: list[ResponseState]) -> list[ResponseState]:
    again: list[ResponseState] = []
    for state in states:
        again.append(read_back(state, again[-1] if again else None))
    return again


def assert_same(one: Rendered, other: Rendered) -> None:
    assert one is not other
    assert (one.writer, one.total, one.ids(), one.json()) == (
        other.writer,
        other.total,
        other.ids(),
        other.json(),
    )
    assert one.body.tail == other.body.tail
    assert one.body.step.ids == other.body.step.ids, "engines take it for the answer"
    assert (one.preface.head, one.preface.format) == (other.preface.head, other.preface.format)


def assert_continues(writes: Renderer, state: ResponseState, again: ResponseState, last: Turn) -> str | None:
    """Assert that one more turn renders the same from both states. Returns the reason of a full rendering."""
    renderings: list[Rendering | None] = []
    for parent in (state, again):
        try:
            renderings.append(writes.render(job(last.input, parent, last.head, last.format)))
        except InvalidRequest:
            renderings.append(None)
    expected, found = renderings
    if expected is None or found is None:
        assert expected is found
        return None
    assert_same(expected.prompt, found.prompt)
    assert found.context.ids() == expected.context.ids()
    assert (found.new_tokens, found.fallback) == (expected.new_tokens, expected.fallback)
    return found.fallback


def assert_kept(writes: Renderer, turns: list[Turn], last: Turn) -> str | None:
    states = chain_of(writes, turns)
    again = all_read_back(states)
    pairs = [(position_of(one), position_of(other)) for one, other in zip(states, again, strict=True)]
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    for one, other in known:
        assert_same(one, other)
    for (one, other), (later, other_later) in combinations(known, 2):
        assert shared_tokens(other, other_later) == shared_tokens(one, later)
    return assert_continues(writes, states[-1], again[-1], last) if states else None


# Chains


EMITTED = st.none() | st.lists(st.integers(0, 255), max_size=4)
HEADS = st.sampled_from([HEAD, HEAD, HEAD, OTHER_HEAD, Head()])
FORMATS = st.sampled_from([TEXT, TEXT, SCHEMA])
RARELY = st.sampled_from([False, False, False, True])


def turns_of(*fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Turn]:
    return st.tuples(*fields).map(lambda values: Turn(*values))


def test_a_chain_of_a_built_in_format_continues_after_decoding() -> None:
    writers = {name: renderer(name) for name in RENDERERS}
    items = st.lists(test_rendering.ITEMS, max_size=3).map(tuple)
    turns = turns_of(items, EMITTED, st.just(()), HEADS, FORMATS)

    @settings(max_examples=40)
    @given(st.lists(turns, min_size=1, max_size=5), turns)
    def kept(chain: list[Turn], last: Turn) -> None:
        for name, writes in writers.items():
            note(name)
            assert_kept(writes, chain, last)

    kept()


def test_a_chain_of_a_template_continues_after_decoding() -> None:
    given_items = st.lists(test_template_renderer.CLIENT_ITEMS, min_size=1, max_size=3).map(tuple)
    assistant_items = st.lists(test_template_renderer.ASSISTANT_ITEMS, max_size=2).map(tuple)
    heads = st.sampled_from([HEAD, HEAD, HEAD, Head()])
    turns = turns_of(given_items, EMITTED, assistant_items, heads, FORMATS)

    @settings(max_examples=40)
    @given(st.lists(turns, min_size=1, max_size=4), turns)
    def kept(chain: list[Turn], last: Turn) -> None:
        for name in TEMPLATES:
            note(name)
            *turns, end = (
                turn._replace(head=head_for(name)) if turn.head is HEAD else turn for turn in (*chain, last)
            )
            assert_kept(template_renderer(name), turns, end)

    kept()


WORDS = st.sampled_from([(user("a"),), (user("b"),)])


@given(
    st.lists(
        turns_of(WORDS, EMITTED, st.just(()), st.just(HEAD), st.just(TEXT), RARELY, RARELY),
        min_size=1,
        max_size=7,
    )
)
@settings(max_examples=60)
def test_a_chain_may_change_models_and_lose_its_tokens(turns: list[Turn]) -> None:
    assert_kept(renderer("chatml in small"), turns, Turn((user("end"),)))


ASKED = (user("a"),)
SAYS, CALLS = message("assistant", "b"), called("f", "{}", "1")
CONVERSATIONS = {
    "words": [Turn(ASKED, [300], (SAYS,)), Turn(ASKED, [301, 302], (SAYS,)), Turn(ASKED, [], (SAYS,))],
    "a call": [Turn(ASKED, [300], (SAYS,)), Turn(ASKED, [301], (CALLS,))],
    "a thought and a call": [Turn(ASKED, [300], (SAYS,)), Turn(ASKED, [301], (thought("hm"), CALLS))],
    "warmups": [Turn(ASKED), Turn((CALLS,)), Turn(())],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_a_template_still_appends_after_decoding(conversation: str) -> None:
    turns = CONVERSATIONS[conversation]
    last = Turn(ASKED if conversation == "words" else (returned("3", "1"),))
    assert assert_kept(template_renderer("thinking"), turns, last) is None


def test_a_decoded_chain_can_be_continued_and_packed_again() -> None:
    writes = renderer("chatml in smollm2")
    (first,) = all_read_back(chain_of(writes, [Turn(ASKED, [300])]))
    (second,) = chain_of(writes, [Turn((user("more"),), [301])], first)
    anew = read_back(first, None)
    assert_continues(writes, second, read_back(second, anew), Turn(ASKED))


# Sharing between contexts


def test_forks_share_their_parents_body() -> None:
    writes = renderer("chatml in smollm2")
    (parent,) = chain_of(writes, [Turn(ASKED, [300])])
    forks = [chain_of(writes, [Turn((user(text),), [301])], parent)[0] for text in ("one", "two")]
    again = read_back(parent, None)
    one, two = (position_of(read_back(fork, again)) for fork in forks)
    shared = position_of(again)
    assert one is not None
    assert two is not None
    assert shared is not None
    for fork in (one, two):
        assert any(body is shared.body for body in fork.body.lineage())
        assert fork.preface is shared.preface
    assert shared_tokens(one, two) == shared.total


def test_a_response_without_new_tokens_has_the_position_of_its_parent() -> None:
    states = chain_of(renderer("chatml in smollm2"), [Turn(ASKED), Turn(())])
    assert states[0].position is states[1].position
    again = all_read_back(states)
    assert again[0].position is again[1].position


def test_a_new_head_is_stored() -> None:
    states = chain_of(renderer("chatml in smollm2"), [Turn(ASKED), Turn((), head=OTHER_HEAD)])
    _, other = map(position_of, all_read_back(states))
    assert other is not None
    assert other.preface.head == OTHER_HEAD


def test_an_equal_preface_is_not_stored_again() -> None:
    writes = renderer("chatml in smollm2")
    first, second = chain_of(writes, [Turn(ASKED), Turn(ASKED)])
    position = position_of(second)
    assert position is not None
    preface = position.preface
    equal = Preface(Head(preface.head.instructions, TOOLS), preface.format)
    assert POSITIONS.pack(Rendered(position.writer, equal, position.body), first.position) == packed(second)


@pytest.mark.parametrize("writer", ["chatml in qwen2", "a template"])
def test_the_packed_size_of_a_turn_does_not_grow_with_the_chain(writer: str) -> None:
    writes = renderer(writer) if writer in RENDERERS else template_renderer("chatml")
    states = chain_of(writes, [Turn((user("hello"),), [300] * 10, (SAYS,)) for _ in range(300)])
    sizes = [len(packed(state)) for state in states]
    counts = [position.total for position in map(position_of, states) if position is not None]
    assert counts[-1] > 4000
    assert max(sizes[1:]) - min(sizes[1:]) <= 4, "but for the count of the tokens before it"
    assert max(sizes[1:]) < 4 * (counts[-1] - counts[-2]) + 500


LONG = test_rendering.user("word " * 400)


def test_a_rewritten_context_is_stored_as_what_it_does_not_share() -> None:
    """The template drops the thoughts of earlier turns: every turn is rendered in full."""
    writes = template_renderer("thinking")
    thinks = Turn((LONG,), list(range(300, 330)), (thought("hm " * 9), SAYS))
    states = chain_of(writes, [thinks] * 6)
    whole = [POSITIONS.pack(state.position, None) for state in states if state.position is not None]
    sizes, whole_sizes = [len(packed(state)) for state in states], [len(data or b"") for data in whole]
    assert whole_sizes[5] > 4 * whole_sizes[0]
    assert max(sizes) < 1.2 * sizes[0]
    for state, again in zip(states, all_read_back(states), strict=True):
        one, other = position_of(state), position_of(again)
        assert one is not None
        assert other is not None
        assert_same(one, other)
    # Another parent than it was packed for, or none.
    data = packed(states[5])
    for parent in (None, states[3].position):
        assert POSITIONS.unpack(data, parent, HEAD) is None


def test_a_whole_context_needs_no_parent() -> None:
    """The parent has the same renderer and the same head, but the context was rendered in full."""
    writes = template_renderer("thinking")
    turns = [Turn(ASKED, [300], (thought("hm"), SAYS)), Turn(ASKED, [301], (SAYS,))]
    states = chain_of(writes, turns)
    for parent in (None, states[0].position, position_of(chain_of(writes, [Turn(())])[0])):
        position = POSITIONS.unpack(packed(states[1]), parent, HEAD)
        assert isinstance(position, Rendered)
        assert_same(position, states[1].position)  # type: ignore[arg-type]


# Positions that cannot be packed or unpacked


def test_positions_of_other_engines_are_not_packed() -> None:
    stranger = SimpleNamespace(size_bytes=9)
    assert POSITIONS.pack(stranger, None) is None
    preface = Preface(HEAD, TEXT)
    assert POSITIONS.pack(Rendered("w", preface, empty(stranger)), None) is None


def test_a_parent_of_another_engine_is_not_needed() -> None:
    (state,) = chain_of(renderer("chatml in small"), [Turn(ASKED)])
    assert state.position is not None
    assert POSITIONS.pack(state.position, SimpleNamespace(size_bytes=9)) == packed(state)


def test_an_appended_context_cannot_be_unpacked_without_its_parent() -> None:
    states = chain_of(renderer("chatml in small"), [Turn(ASKED, [30]), Turn(ASKED, [31]), Turn(ASKED, [32])])
    (foreign,) = chain_of(renderer("llama3 in small"), [Turn(ASKED)])
    same_length = Rendered("another", states[1].position.preface, states[1].position.body)
    data = packed(states[2])
    assert POSITIONS.unpack(data, states[1].position, HEAD) is not None
    for parent in (None, foreign.position, same_length, states[0].position, SimpleNamespace(size_bytes=9)):
        assert POSITIONS.unpack(data, parent, HEAD) is None


def with_checksum(data: bytes, content: bytes) -> bytes:
    """Other content with a valid checksum."""
    return data[:1] + zlib.crc32(content).to_bytes(4, "little") + content


@pytest.fixture(params=["a beginning in ChatML", "ChatML", "a beginning by a template", "a template"])
def state(request: pytest.FixtureRequest) -> ResponseState:
    """States with and without a parent, which together use every field of the format."""
    chatml, template = renderer("chatml in small"), template_renderer("thinking")
    states = {
        "ChatML": chain_of(chatml, [Turn(ASKED, [30], format=SCHEMA), Turn(ASKED, [31])]),
        "template": chain_of(template, CONVERSATIONS["a thought and a call"]),
    }
    return states[request.param.split()[-1]][0 if "beginning" in request.param else 1]


def test_truncated_bytes_give_none(state: ResponseState) -> None:
    data, parent = packed(state), position_of(state.parent)
    assert POSITIONS.unpack(data, parent, state.head) is not None
    for length in range(len(data)):
        assert POSITIONS.unpack(data[:length], parent, state.head) is None
    for length in range(len(data) - 5):
        assert POSITIONS.unpack(with_checksum(data, data[5 : 5 + length]), parent, state.head) is None
    assert POSITIONS.unpack(data + b"\0", parent, state.head) is None
    assert POSITIONS.unpack(with_checksum(data, data[5:] + b"\0"), parent, state.head) is None


def test_corrupt_bytes_give_none(state: ResponseState) -> None:
    data, parent = packed(state), position_of(state.parent)
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            assert POSITIONS.unpack(damaged, parent, state.head) is None


def test_a_whole_context_without_a_preface_gives_none() -> None:
    (whole,) = chain_of(renderer("chatml in small"), [Turn(ASKED)])
    content = msgspec.msgpack.encode(["writer", None, None, b"", None, None])
    assert POSITIONS.unpack(with_checksum(packed(whole), content), None, HEAD) is None


def test_unpacking_never_raises(state: ResponseState) -> None:
    data, parent = packed(state), position_of(state.parent)

    @settings(max_examples=300)
    @given(st.lists(st.tuples(st.integers(5, len(data) - 1), st.integers(0, 255)), max_size=3), st.binary())
    def read(changes: list[tuple[int, int]], anything: bytes) -> None:
        changed = bytearray(data)
        for at, value in changes:
            changed[at] = value
        POSITIONS.unpack(with_checksum(data, bytes(changed[5:])), parent, state.head)
        POSITIONS.unpack(with_checksum(data, anything), parent, state.head)
        POSITIONS.unpack(anything, parent, state.head)

    read()


def test_another_version_gives_none(state: ResponseState) -> None:
    data, parent = packed(state), position_of(state.parent)
    for version in {*range(256)} - {data[0]}:
        assert POSITIONS.unpack(bytes([version]) + data[1:], parent, state.head) is None


# The stored format


TAIL = Tail(
    stand_in=(
        ChatMessage(role="user", content="?"),
        ChatMessage(role="assistant", thoughts="hm", calls=(ChatCall("1", "f", {"argument": "x"}),)),
        ChatMessage(role="tool", content="3", call_id="1", name="f"),
    ),
    pending={"2": PendingCall("g", "functions.g:1")},
    prompt=(1, 70_000),
    opens_thought=True,
    calls=2,
    effort="high",
    is_open=True,
)
WRITTEN = (
    b'\x026M5\x17\x96\xa1w\xc0\x94\xabjson_schema\xc4\x02{}\xc4\x11{"type":"object"}\xc4\0'
    b"\xc4\x10\x01\0\0\0\x02\0\0\0\x03\0\0\0\x80\x1a\x06\0\xc4\x04\x05\0\0\0\x87\xa8stand_in\x93"
    b"\x86\xa4role\xa4user\xa7content\xa1?\xa8thoughts\xa0\xa5calls\x90\xa7call_id\xa0\xa4name\xa0"
    b"\x86\xa4role\xa9assistant\xa7content\xa0\xa8thoughts\xa2hm\xa5calls\x91"
    b"\x83\xa2id\xa11\xa4name\xa1f\xa9arguments\x81\xa8argument\xa1x\xa7call_id\xa0\xa4name\xa0"
    b"\x86\xa4role\xa4tool\xa7content\xa13\xa8thoughts\xa0\xa5calls\x90\xa7call_id\xa11\xa4name\xa1f"
    b"\xa7pending\x81\xa12\x92\xa1g\xadfunctions.g:1\xa6prompt\x92\x01\xce\0\x01\x11p\xadopens_thought\xc3"
    b"\xa7is_open\xc3\xa5calls\x02\xa6effort\xa4high"
)


def test_the_format_of_version_2_does_not_change() -> None:
    """Stored bytes must stay readable until the version changes."""
    body = empty(None).then([1, 2, 3, 400_000], None).then([5], TAIL)
    position = Rendered("w", Preface(HEAD, SCHEMA), body)
    assert POSITIONS.pack(position, None) == WRITTEN
    again = POSITIONS.unpack(WRITTEN, None, HEAD)
    assert isinstance(again, Rendered)
    assert_same(again, position)
