"""Chains that are not stored and exceed the memory of their connection, and what running turns continue."""

import random

import pytest

from slipring.core.chain.state_cache import ConnectionCache, SharedScopes
from tests.core.connection import Connection, Server, context_of, message, node, only_error

PART = 40_000
LETTERS = random.Random(7).choices("abcdefghijklmnop", k=PART)


def text(number: int) -> str:
    """Text that compresses to about half, different for each number."""
    return f"{number} " + "".join(LETTERS[number:] + LETTERS[:number])


def grow(connection: Connection, turns: int, previous: str | None = None, first: int = 0) -> str:
    for number in range(first, first + turns):
        asked = connection.respond(previous=previous, input=text(number))
        previous = asked["id"]
        while connection.compressions:
            connection.compress()
    assert previous is not None
    return previous


def server(**limits: float) -> Server:
    return Server(**{"connection_cache_bytes": 100_000, "connection_compressed_bytes": 500_000, **limits})


def test_a_chain_that_is_larger_than_the_connection_keeps_goes_on():
    connection = Connection(server())
    last = grow(connection, 10)
    state = connection.cache.find(last)
    assert state is not None
    assert [bool(each.compressed_bytes) for each in reversed(list(state.chain()))] == [True] * 8 + [False] * 2
    connection.create(previous=last, input="and?")
    texts = [item["content"] for item in context_of(connection.job()) if item["role"] == "user"]
    assert texts == [*map(text, range(10)), "and?"]
    connection.complete()


def test_compressed_items_are_counted_and_released():
    connection = Connection(server())
    grow(connection, 10)
    plain = 10 * PART
    scope, process = connection.server.scopes.of("tenant")
    assert 0.5 * plain < connection.cache.used_bytes == scope.used_bytes == process.used_bytes < 0.8 * plain
    assert process.compressions == connection.cache.compressed_states == 8
    state = next(iter(connection.cache._lanes.values())).state
    compressed = sum(each.compressed_bytes for each in state.chain())
    assert connection.cache.limited_bytes == connection.cache.used_bytes - compressed
    assert PART < connection.cache.limited_bytes <= connection.cache.limit_bytes
    connection.cache.clear()
    assert (connection.cache.used_bytes, process.used_bytes, connection.cache.compressed_states) == (0, 0, 0)
    assert connection.cache._compression.item_bytes == connection.cache._compression.compressed_bytes == 0


def test_past_the_bound_the_chain_is_forgotten_and_the_error_says_why():
    connection = Connection(server(connection_compressed_bytes=150_000))
    last = grow(connection, 5)
    assert last in connection.cache
    for number in (5, 6):
        last = connection.respond(previous=last, input=text(number))["id"]
        while connection.compressions:
            connection.compress()
        if last not in connection.cache:
            break
    connection.create(previous=last)
    error = only_error(connection.load())["error"]
    assert error["code"] == "previous_response_not_found"
    assert "larger than this connection keeps (100000 bytes, and 150000 bytes that are" in error["message"]
    assert not len(connection.cache)
    connection.create(previous="resp_unknown")
    assert only_error(connection.load())["error"]["message"].endswith("not found.")


def test_without_a_bound_nothing_is_compressed():
    connection = Connection(server(connection_compressed_bytes=0))
    last = None
    for number in range(3):
        last = connection.respond(input=text(number), previous=last)["id"]
    assert not connection.compressions
    connection.create(previous=last)
    assert "(100000 bytes)." in only_error(connection.load())["error"]["message"]


def test_a_stored_chain_is_evicted_and_loaded_again():
    connection = Connection(server())
    last = None
    for number in range(4):
        last = connection.respond(input=text(number), previous=last, store=True)["id"]
    assert not connection.compressions
    assert last not in connection.cache
    connection.create(previous=last, input="and?")
    connection.load()
    assert connection.complete()["status"] == "completed"


def test_while_states_are_compressed_nothing_is_evicted_and_turns_go_on():
    connection = Connection(server())
    last = None
    for number in range(6):
        last = connection.respond(input=text(number), previous=last)["id"]
    (waiting,) = connection.compressions
    assert last in connection.cache
    connection.compress(0)
    assert len(connection.compressions) == 1, "asked for again"
    assert len(connection.compressions[0].states) > len(waiting.states)
    connection.compress(1)
    while connection.compressions:
        connection.compress()
    assert last in connection.cache


def test_about_twice_the_excess_is_compressed_at_once():
    part = 100_000
    cache = ConnectionCache(20 * part, compressible_bytes=10**9)
    chain = [node("n0", text="x" * part)]
    cache.remember(chain[0], None)
    while not (taken := cache.take_compressible()):
        chain.append(node(f"n{len(chain)}", chain[-1], text="x" * part))
        cache.remember(chain[-1], None)
    assert taken == chain[:11], "a mebibyte at least, the oldest first"
    cache.keep_compressed([])
    for number in range(len(chain), len(chain) + 7):
        chain.append(node(f"n{number}", chain[-1], text="x" * part))
        cache.remember(chain[-1], None)
    assert cache.take_compressible() == chain[:16], "twice what is too much"


def test_states_that_were_freed_meanwhile_are_not_compressed():
    connection = Connection(server())
    last = None
    for number in range(4):
        last = connection.respond(input=text(number), previous=last)["id"]
    (waiting,) = connection.compressions
    connection.cache.clear()
    connection.compress()
    assert not any(state.compressed_bytes for state in waiting.states)
    assert connection.cache.used_bytes == 0


def test_a_connection_that_has_closed_compresses_no_more():
    connection = Connection(server())
    last = None
    for number in range(6):
        last = connection.respond(input=text(number), previous=last)["id"]
    cache = connection.session.detach_cache()
    connection.session.closed()
    connection.compress(1)
    assert not connection.compressions
    assert last is not None
    assert cache.find(last) is not None


def test_another_connection_continues_a_compressed_chain():
    """As after a disconnect."""
    connection = Connection(server())
    state = connection.cache.find(grow(connection, 10))
    assert state is not None
    again = ConnectionCache(100_000, compressible_bytes=500_000)
    again.remember(state, None)
    assert state.id in again
    assert again.compressed_states == 8
    again.clear()
    assert (again.used_bytes, again._compression.compressed_bytes, again._compression.item_bytes) == (0, 0, 0)


def test_items_of_compressed_states_are_found_by_reference():
    connection = Connection(server())
    first = connection.respond(input=[{**message("remember me"), "id": "msg_mine"}])
    last = grow(connection, 5, first["id"])
    connection.create(previous=last, input=[{"type": "item_reference", "id": "msg_mine"}])
    assert context_of(connection.job())[-1]["content"] == "remember me"
    connection.complete()


# What running turns continue.


@pytest.mark.parametrize("ends", ["complete", "fail", "hang_up"])
def test_the_parent_of_a_running_turn_counts_though_it_is_evicted(ends):
    connection = Connection()
    first = connection.respond(input=text(1))
    used = connection.cache.used_bytes
    connection.create(previous=first["id"])
    connection.cache.evict(first["id"])
    assert connection.cache.used_bytes == used
    getattr(connection, ends)()
    connection.cache.clear()
    assert connection.cache.used_bytes == connection.server.scopes.process.used_bytes == 0


def test_a_parent_from_the_store_counts_while_its_turn_runs():
    connection = Connection()
    first = connection.respond(input=text(1), store=True)
    again = Connection(connection.server)
    again.create(previous=first["id"], store=False)
    again.load()
    assert again.cache.used_bytes > PART
    again.fail()
    assert again.cache.used_bytes == 0


def test_exchanges_count_what_they_continue_once_per_tenant():
    scopes = SharedScopes(10**6, 10**6)
    state = node("a")
    one, other = scopes.exchange("t"), scopes.exchange("t")
    one.pin(state)
    used = scopes.process.used_bytes
    other.pin(state)
    assert scopes.process.used_bytes == used == state.context_bytes
    one.unpin(state)
    assert scopes.process.used_bytes == used
    other.unpin(state)
    assert scopes.process.used_bytes == scopes.of("t")[0].used_bytes == 0


def test_what_exchanges_continue_makes_cached_states_give_way():
    scopes = SharedScopes(2 * PART, 10**9)
    cache = ConnectionCache(10**9, scopes.of("t"))
    connection = Connection()
    cache.remember(node("a"), None)
    connection.respond(input=text(1))
    (large,) = connection.cache.states()
    exchange = scopes.exchange("t")
    exchange.pin(large)
    assert "a" in cache
    exchange.pin(node("b"))
    for number in range(2):
        other = Connection()
        other.respond(input=text(number))
        exchange.pin(other.cache.states()[0])
    assert "a" not in cache
