"""The chain of states: shared structure, and memory proportional to the new items."""

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slipring.core.chain import item_ids
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.generation import Job, Settings
from slipring.protocol.items.items import Item, user_message
from slipring.protocol.tools.tool_choice import Offer
from tests.core.connection import PLAIN, Connection, call_output, function, line, message, node


def state_of(connection: Connection, response_id: str) -> ResponseState:
    state = connection.cache.find(response_id)
    assert state is not None
    return state


def texts(items: Iterator[Item]) -> list[Any]:
    return [item.body().content for item in items]


# The chain.


def test_a_chain_iterates_from_the_newest_and_a_context_from_the_oldest():
    root = node("a", text="one", output=(user_message("uno"),))
    child = node("b", root, text="two", output=(user_message("due"),))
    assert list(child.chain()) == [child, root]
    assert texts(child.context()) == ["one", "uno", "two", "due"]
    assert (root.depth, child.depth) == (1, 2)


def test_a_job_reads_its_parents_context_and_then_its_own_input():
    parent = node("a", text="one")
    job = Job(
        response_id="b",
        tenant="t",
        model=PLAIN,
        head=Head(),
        parent=parent,
        input=(user_message("two"),),
        offer=Offer(),
        settings=Settings(),
    )
    assert texts(job.context()) == ["one", "two"]


OUTPUT = Item(
    "function_call_output", b'{"type":"function_call_output","call_id":"c","output":"x"}', None, "c"
)
SEALED = Item("reasoning", b'{"type":"reasoning"}', opened=(user_message("thought"),))
COMPACTION = Item("compaction", b'{"type":"compaction"}', opened=(user_message("summary"),))


@pytest.mark.parametrize(
    ("own", "output", "unread"),
    [
        ((user_message("one"),), (user_message("uno"),), ()),
        ((SEALED,), (user_message("uno"),), ()),
        ((user_message("one"),), (SEALED, user_message("uno")), ()),
        ((user_message("one"),), (user_message("uno"), COMPACTION, user_message("due")), ()),
        ((user_message("one"),), (user_message("uno"), OUTPUT, user_message("due")), ()),
        ((user_message("one"),), (user_message("uno"),), (OUTPUT,)),
    ],
)
def test_what_a_response_adds_is_its_prompt_and_its_answer(own, output, unread):
    parent = node("resp_1", output=(user_message("zero"), *unread))
    state = node("resp_2", parent=parent, input=own, output=output)
    assert state.added == (*state.prompt, *state.answer)


def test_items_are_found_by_id_in_input_and_output_of_the_whole_chain():
    asked = Item(type="message", raw=b"{}", id="msg_in")
    answered = Item(type="message", raw=b"{}", id="msg_out")
    root = node("a", output=(answered,))
    child = node("b", node("c", root, output=(asked,)))
    assert child.find_items({"msg_in", "msg_out", "msg_none"}) == {"msg_in": asked, "msg_out": answered}


def test_an_input_item_without_an_id_is_found_by_its_index():
    child = node("resp_b", node("resp_a", text="one"))
    item_id = item_ids.place_id(user_message(""), "resp_a", 0)
    beyond = item_ids.place_id(user_message(""), "resp_a", 1)
    other_type = item_ids.place_id(Item(type="reasoning", raw=b"{}"), "resp_a", 0)
    found = child.find_items({item_id, beyond, other_type})
    assert found.keys() == {item_id}
    assert (found[item_id].id, found[item_id].raw) == (item_id, user_message("one").raw)


def test_the_chain_is_walked_only_until_all_items_are_found():
    first = Item(type="message", raw=b"{}", id="msg_1")
    child = node("b", node("a", output=(first,)), output=(first,))
    assert child.find_items({"msg_1"}) == {"msg_1": first}


def test_a_state_is_shown_with_its_id_and_depth():
    assert repr(node("b", node("a"))) == "<ResponseState b depth=2>"


def test_a_response_without_usage_has_no_known_length():
    assert node("a").tokens is None


def test_states_cannot_be_pickled():
    with pytest.raises(TypeError):
        pickle.dumps(node("a"))


# Sharing.


def test_continuations_and_forks_share_the_parent_node():
    connection = Connection()
    connection.respond("a")
    connection.respond("a", previous="resp_1")
    connection.respond("b", previous="resp_1")
    root = state_of(connection, "resp_1")
    assert state_of(connection, "resp_2").parent is root
    assert state_of(connection, "resp_3").parent is root


def test_a_loaded_parent_is_shared_with_the_store():
    connection = Connection()
    connection.respond(store=True)
    other = connection.server.connect()
    other.respond(previous="resp_1")
    assert state_of(other, "resp_2").parent is connection.server.store["tenant", "resp_1"]


def test_the_head_is_shared_while_instructions_and_tools_stay_the_same():
    connection = Connection()
    head: Any = {"tools": [function("f")], "instructions": "be brief"}
    connection.respond(**head)
    connection.respond(previous="resp_1", **head)
    assert state_of(connection, "resp_2").head is state_of(connection, "resp_1").head
    assert connection.order.responses[1]["tools"] == connection.order.responses[0]["tools"]


def test_shared_instructions_and_tools_are_encoded_once():
    """Every response object contains both; encoding 20 kB per turn would dominate its cost."""
    connection = Connection()
    head: Any = {"tools": [function("f")], "instructions": "be brief"}
    connection.respond(**head)
    connection.respond(previous="resp_1", **head)
    first, second = state_of(connection, "resp_1").response, state_of(connection, "resp_2").response
    assert second.instructions is first.instructions
    assert second.tools is first.tools


def test_changed_instructions_keep_the_tools_that_were_read():
    connection = Connection()
    connection.respond(tools=[function("f")], instructions="be brief")
    connection.respond(previous="resp_1", tools=[function("f")], instructions="be verbose")
    old, new = state_of(connection, "resp_1").head, state_of(connection, "resp_2").head
    assert new is not old
    assert new.tools is old.tools
    assert new.instructions == "be verbose"


@pytest.mark.parametrize("tools", [None, [], [function("g")], [function("f"), function("g")]])
def test_changed_tools_are_decoded_again(tools):
    connection = Connection()
    connection.respond(tools=[function("f")])
    connection.create(previous="resp_1", tools=tools)
    head = connection.job().head
    assert head is not state_of(connection, "resp_1").head
    assert [tool.name for tool in head.tools.callables] == [tool["name"] for tool in tools or ()]


def test_neither_tools_nor_instructions_are_inherited():
    connection = Connection()
    connection.respond(tools=[function("f")], instructions="be brief")
    response = connection.respond(previous="resp_1")
    assert (response["tools"], response["instructions"]) == ([], None)


@pytest.mark.parametrize("absent", [None, []])
def test_no_tools_and_empty_tools_are_the_same(absent):
    connection = Connection()
    connection.respond(tools=[])
    connection.respond(previous="resp_1", tools=absent)
    assert state_of(connection, "resp_2").head is state_of(connection, "resp_1").head


# Size.


def growth(connection: Connection, turns: int, **fields: Any) -> list[int]:
    """The sizes of the states of a conversation with equal turns, oldest first."""
    sizes, previous = [], None
    for _ in range(turns):
        previous = connection.respond(previous=previous, **fields)["id"]
        sizes.append(state_of(connection, previous).size_bytes)
    return sizes


def test_a_states_size_does_not_depend_on_the_length_of_its_chain():
    first, *rest = growth(Connection(), 30)
    assert first - rest[0] == Head().size_bytes
    assert max(rest) - min(rest) < 20  # ids grow by a digit


def test_instructions_and_tools_count_where_they_appear_first():
    first, *rest = growth(
        Connection(), 5, instructions="i" * 50_000, tools=[function("f", description="d" * 9000)]
    )
    assert first > 50_000 + 2 * 9000
    assert max(rest) < 4000


def test_tools_count_once_when_only_the_instructions_change():
    connection = Connection()
    tools = [function("f", description="d" * 9000)]
    connection.respond(tools=tools, instructions="one")
    connection.respond(previous="resp_1", tools=tools, instructions="two")
    assert state_of(connection, "resp_2").size_bytes < 4000


def test_a_states_size_covers_its_items():
    small, large = node("a", text="x"), node("b", text="x" * 1001)
    assert large.size_bytes - small.size_bytes == 1000


LARGE = "x" * 10_000
LARGE_SCHEMA = {"type": "json_schema", "name": "n", "schema": {"description": LARGE}}


@pytest.mark.parametrize(
    "fields",
    [
        {"user": LARGE},
        {"prompt_cache_key": LARGE},
        {"reasoning": {"mode": LARGE}},
        {"metadata": {f"k{number}": "v" * 500 for number in range(16)}},
        {"text": {"format": LARGE_SCHEMA}},
        {"input": [{"type": "configuration_update", "text": {"format": LARGE_SCHEMA}}]},
        {"tools": [function("f")], "tool_choice": {"type": "allowed_tools", "tools": [function("f")] * 100}},
        {"input": [{"type": "additional_tools", "tools": [function(LARGE[:200])]}, message(LARGE)]},
        {"instructions": LARGE},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_every_field_that_a_client_can_make_large_counts(fields):
    """The limits on memory must cover every field of the response."""
    connection = Connection()
    connection.respond(**{"reasoning": None, **fields})
    assert state_of(connection, "resp_1").size_bytes > 8000


def test_turns_share_unanswered_calls():
    """A client may leave thousands of asynchronous calls open; turns must not copy them."""
    connection = Connection()
    calls = [
        {"type": "function_call", "call_id": f"call_{n}", "name": "f", "arguments": "{}", "async": True}
        for n in range(500)
    ]
    connection.respond(input=[*calls, message("go")])
    connection.respond(previous="resp_1")
    assert state_of(connection, "resp_2").carry.open_calls is state_of(connection, "resp_1").carry.open_calls


def test_unanswered_calls_count_when_they_are_copied():
    connection = Connection()
    calls = [
        {"type": "function_call", "call_id": f"call_{n}", "name": "f", "arguments": "{}", "async": True}
        for n in range(500)
    ]
    connection.respond(input=[*calls, message("go")])
    connection.respond(previous="resp_1", input=[call_output("call_7")])
    before, after = state_of(connection, "resp_1"), state_of(connection, "resp_2")
    assert before.carry.open_calls.keys() - after.carry.open_calls.keys() == {"call_7"}
    assert after.size_bytes > 499 * 100


def test_requests_for_approval_count_where_they_change():
    request = {"type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "x" * 50}
    connection = Connection()
    items = [{**request, "id": f"mcpr_{n}"} for n in range(500)]
    connection.create(input=[*items, message("go")], generate=False)
    waiting = state_of(connection, connection.complete()["id"])
    connection.create(previous=waiting.id, input=[message("no")])
    denied = state_of(connection, connection.complete()["id"])
    connection.create(previous=denied.id, input=[message("more")])
    last = state_of(connection, connection.complete()["id"])
    assert (len(waiting.carry.approvals), len(denied.carry.answered)) == (500, 500)
    assert waiting.size_bytes - waiting.item_bytes > 500 * 150
    assert denied.size_bytes - denied.item_bytes > 500 * 100
    assert last.size_bytes < 4000
    assert last.carry.answered is denied.carry.answered


# Length.


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector, so that reference counts alone free the states."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_chain_of_a_hundred_thousand_responses_can_be_built_read_and_dropped():
    with no_collection():
        chain = line(100_000)
        last = chain[-1]
        del chain
        assert last.depth == 100_000
        assert sum(1 for _ in last.context()) == 100_000
        cache = ConnectionCache(10**9)
        cache.remember(last, None)
        assert cache.used_bytes > 100_000 * 1000
        cache.evict(last.id)
        assert cache.used_bytes == 0
        del last
    gc.collect()
