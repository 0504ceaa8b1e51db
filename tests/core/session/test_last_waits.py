"""Every wait of a turn may be its last: however it ends there, nothing stays charged, pinned, open, unsent or
half-stored."""

from collections.abc import Callable

import pytest

from slipring.base.errors import ServerError
from slipring.core.betas import Betas
from slipring.core.checks.policies import Check, Policy
from slipring.core.generation import CallArguments, CallStarted, Text
from slipring.core.session import actions
from slipring.core.session.actions import Flush, Work
from slipring.core.turn.stages import News
from slipring.core.turn.turn import Turn
from tests.core.connection import Connection, Json, Server, call_output, function, message
from tests.core.hosted_turns import HOSTED, begin, hosted

CALL = (CallStarted("function", "f"), CallArguments("{}"))
GRAMMAR = {
    "type": "custom",
    "name": "t",
    "format": {"type": "grammar", "syntax": "regex", "definition": "a+"},
}


def checked(*, before: bool) -> Connection:
    server = Server()
    server.policy = Policy((Check("guard", action="block", mode="hold", on_error="closed", before=before),))
    return Connection(server)


def loading() -> Connection:
    connection = Connection()
    connection.create(previous="resp_9")
    return connection


def resolving() -> Connection:
    connection = Connection()
    connection.create(tools=HOSTED)
    return connection


def fetching() -> Connection:
    connection = Connection(Server.fetching_images())
    image = {"type": "input_image", "image_url": "https://a.example/b.png"}
    connection.create(model="able", input=[message([image])])
    return connection


def reading() -> Connection:
    connection = Connection(Server.reading_documents())
    file = {"type": "input_file", "file_data": "JVBERi0xLjQK"}
    connection.create(input=[message([file])])
    return connection


def compiling() -> Connection:
    connection = Connection()
    connection.create(tools=[GRAMMAR])
    return connection


def listing() -> Connection:
    connection = resolving()
    connection.find_servers()
    return connection


def claiming() -> Connection:
    connection = Connection()
    asking = [{"type": "mcp", "server_label": "s"}]
    begin(connection, tools=asking)
    connection.finish(*hosted())
    response: Json = connection.order.responses[-1]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": response["output"][-1]["id"],
        "approve": True,
    }
    connection.create(previous=response["id"], input=[answer], tools=asking)
    connection.resolve()
    return connection


def counting() -> Connection:
    connection = Connection()
    connection.create(context_management=[{"type": "compaction", "compact_threshold": 100}])
    return connection


def preparing() -> Connection:
    connection = Connection(accepts=lambda job: False)
    first = connection.server.connect().respond(store=True)
    connection.create(previous=first["id"])
    if connection.loads:
        connection.load()
    return connection


def generating() -> Connection:
    connection = Connection()
    first = connection.respond()
    connection.create(previous=first["id"])
    connection.generate(Text("hal"))
    return connection


def inspecting() -> Connection:
    connection = checked(before=True)
    connection.create()
    return connection


def awaiting_verdicts() -> Connection:
    connection = checked(before=False)
    connection.create()
    connection.finish(Text("hello"))
    return connection


def calling() -> Connection:
    connection = Connection()
    begin(connection)
    connection.finish(*hosted())
    return connection


def awaiting_outputs() -> Connection:
    connection = Connection(betas=Betas(rollout=True, tool_output=True))
    connection.create(rollout=True, tools=[function("f")])
    done = connection.finish(*CALL)[-1]
    connection.stream_output(done["response_id"], done["required_input"][0]["call_id"], "s" * 100)
    return connection


def resuming() -> Connection:
    connection = Connection(betas=Betas(rollout=True))
    connection.session.shared.asks_each_turn = True
    connection.create(rollout=True, tools=[function("f")])
    connection.load()
    done = connection.finish(*CALL)[-1]
    connection.append(done["response_id"], call_output(done["required_input"][0]["call_id"], "sun"))
    return connection


def second_step() -> Connection:
    connection = Connection(betas=Betas(rollout=True))
    connection.create(rollout=True, tools=[function("f")])
    done = connection.finish(*CALL)[-1]
    connection.append(done["response_id"], call_output(done["required_input"][0]["call_id"], "sun"))
    connection.generate(Text("hal"))
    return connection


def saving() -> Connection:
    connection = Connection()
    connection.create(store=True, input=[message("hi")])
    connection.finish(Text("hello"))
    return connection


WAITS: dict[str, Callable[[], Connection]] = {
    each.__name__: each
    for each in (
        *(
            loading,
            resolving,
            fetching,
            reading,
            compiling,
            listing,
            claiming,
            counting,
            preparing,
            generating,
            inspecting,
        ),
        *(awaiting_verdicts, calling, awaiting_outputs, resuming, second_step, saving),
    )
}


def running(connection: Connection) -> Turn:
    (turn,) = connection.session.shared.lanes.running()
    return turn


def fail(connection: Connection) -> None:
    """The work fails, if the turn waits for any."""
    if isinstance(running(connection).wait, Work):
        connection.fail()
    else:
        unattend(connection)


def unattend(connection: Connection) -> None:
    """The driver's task of the turn has ended without a result."""
    turn = running(connection)
    connection._run(connection.session.turns.unattended(turn, connection.server.now))
    if turn.place != "ended":  # it waits for something else
        break_down(connection)


def break_down(connection: Connection) -> None:
    """A hosted call or an inspection has ended without a result."""
    connection._run(connection.session.turns.broken(running(connection), connection.server.now))


def drain(connection: Connection) -> None:
    """The server stops, and the grace period ends. What is being saved is saved."""
    connection.end(ServerError("stop"), grace_s=5.0)
    connection.tick(6.0)
    if connection.saves:
        connection.save()


def hang_up(connection: Connection) -> None:
    connection.hang_up()
    connection.order.finish(abandoned=True)


ENDS = {each.__name__: each for each in (fail, unattend, break_down, drain, hang_up)}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("end", ENDS)
def test_a_turn_may_end_at_any_wait(wait: str, end: str) -> None:
    connection = WAITS[wait]()
    turn, shared = running(connection), connection.session.shared
    before = len(connection.events)
    ENDS[end](connection)
    for _ in range(3):  # a response that keeps its finished steps is saved before it ends
        if connection.saves and end != "hang_up":
            connection.save()
    assert turn.place == "ended"
    assert connection.session.in_flight == 0 or end == "hang_up"
    assert not connection.session.turns._programs
    # Nothing stays charged or pinned, but for pieces of outputs that can still be continued.
    growths = shared.growing_outputs.growing
    assert set(shared.charges._held) == set(growths.values())
    assert set(growths) <= {turn.output.response_id} & {state.id for state in connection.cache.states()}
    assert connection.server.requests.used_bytes == sum(each.size_bytes for each in growths.values())
    assert connection.cache.used_bytes == sum(
        connection.cache._retention._sizes[node]
        for node in {node for state in connection.cache.states() for node in state.chain()}
    )
    # Nothing stays open.
    assert not connection.calls
    assert connection.prefills.keys() <= growths.keys()
    # Everything was sent: one event has ended the turn, unless there is nobody to send it to.
    if end != "hang_up":
        connection.order.finish()
        ends = ("completed", "incomplete", "failed")
        sent = connection.events[before:]
        last = [e for e in sent if e["type"] == "error" or e["type"].removeprefix("response.") in ends]
        assert len([event for event in last if event.get("error", {}).get("message") != "stop"]) == 1
    # A response that has failed whole is not stored.
    stored = [
        state for (_, _), state in connection.server.store.items() if state.id == turn.output.response_id
    ]
    assert all(state.response.status == "completed" for state in stored)
    # What comes late has no effect.
    assert connection.session.turns.unattended(turn, connection.server.now) == []
    assert connection.session.turns.broken(turn, connection.server.now) == []


def test_every_kind_of_wait_is_among_them() -> None:
    kinds = {each for each in vars(actions).values() if isinstance(each, type) and issubclass(each, Work)}
    reached = {running(make()).wait for make in WAITS.values()}
    assert {type(wait) for wait in reached} - {News} == kinds - {Work, Flush}
    assert {wait.place for wait in reached if isinstance(wait, News)} == {"inspecting", "running", "paused"}
