"""Child processes that run tasks within bounds, and what becomes of those that exceed them."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipring.errors import InvalidRequest, RateLimited, ServerError, Unavailable
from slipring.sandbox.compile_limits import MIB, Bounds
from slipring.sandbox.outcome_cache import Cache
from slipring.sandbox.pipe_messages import Done
from slipring.sandbox.queue import FairQueue
from slipring.sandbox.sandbox import InThread, Sandbox, TooExpensive
from slipring.sandbox.tasks import TASKS

NAMES = "echo count hold spin repeat allocate retain crash leave refuse fail nest chatter whoami".split()
TEST_TASKS = dict.fromkeys(NAMES, "tests.sandbox.tasks")
BOUNDS = Bounds(timeout_s=1.0, memory_bytes=128 * MIB)


@asynccontextmanager
async def opened(**bounds: Any) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(replace(BOUNDS, **bounds), TEST_TASKS)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with opened() as sandbox:
        yield sandbox


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


async def release(fifo: Path, text: str = "go") -> None:
    """Let a task go on that ``hold``s."""
    await asyncio.to_thread(fifo.write_text, text)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nothing_is_started_before_the_first_call(sandbox: Sandbox) -> None:
    assert sandbox.pids == []
    assert await sandbox.run("t", "echo", ["a", 1, b"\x00", None, {"x": 2.5}]) == [
        "a",
        1,
        b"\x00",
        None,
        {"x": 2.5},
    ]
    assert len(sandbox.pids) == 1


async def test_a_task_that_is_not_registered_is_not_run(sandbox: Sandbox) -> None:
    with pytest.raises(LookupError):
        await sandbox.run("t", "processor_time")


@pytest.mark.parametrize("name", TASKS)
def test_every_registered_task_exists(name: str) -> None:
    module = __import__(TASKS[name], fromlist=[name])
    assert callable(getattr(module, name))


async def test_what_takes_too_much_time_is_ended_and_the_next_call_works(sandbox: Sandbox) -> None:
    with pytest.raises(TooExpensive, match=r"more than 1 s of processor time .*compile_timeout_s"):
        await sandbox.run("t", "spin")
    assert await sandbox.run("t", "echo", 1) == 1


async def test_what_takes_too_much_memory_is_refused_and_the_next_call_works(sandbox: Sandbox) -> None:
    assert await sandbox.run("t", "allocate", 32 * MIB) == 32 * MIB
    with pytest.raises(TooExpensive, match="compile_memory_bytes"):
        await sandbox.run("t", "allocate", BOUNDS.memory_bytes)
    assert await sandbox.run("t", "echo", 1) == 1


async def test_a_child_that_has_grown_is_replaced(sandbox: Sandbox) -> None:
    assert await sandbox.run("t", "retain", MIB) == 1
    before = sandbox.pids
    assert await sandbox.run("t", "retain", BOUNDS.memory_bytes * 5 // 8) == 2
    assert sandbox.pids == []
    assert await sandbox.run("t", "retain", 2 * MIB) == 1
    assert sandbox.pids != before


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
async def test_a_child_that_dies_is_the_refusal_of_one_call(sandbox: Sandbox, number: int) -> None:
    with pytest.raises(TooExpensive, match="more than the compiler can take"):
        await sandbox.run("t", "crash", int(number))
    with pytest.raises(TooExpensive):
        await sandbox.run("t", "leave")
    assert await sandbox.run("t", "echo", 1) == 1


async def test_calls_and_results_are_bounded_in_size() -> None:
    async with opened(call_bytes=1000) as sandbox:
        assert await sandbox.run("t", "repeat", 900) == 900 * "x"
        with pytest.raises(TooExpensive, match="expands to more than 1000 bytes"):
            await sandbox.run("t", "repeat", 1000)
        assert await sandbox.run("t", "echo", 900 * "x") == 900 * "x"
        with pytest.raises(TooExpensive, match="has more than 1000 bytes"):
            await sandbox.run("t", "echo", 1000 * "x")


async def test_refusals_come_back_as_they_were(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await sandbox.run("t", "refuse")
    assert (caught.value.message, caught.value.param, caught.value.code) == ("No.", "tools[1]", "some_code")


async def test_faults_of_ours_are_logged_and_not_told(sandbox: Sandbox, caplog: Any) -> None:
    with pytest.raises(ServerError) as caught:
        await sandbox.run("t", "fail")
    assert "a fault of ours" not in caught.value.message
    assert "a fault of ours" in caplog.text


async def test_what_is_nested_too_deeply_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(TooExpensive, match="nested too deeply"):
        await sandbox.run("t", "nest", 10_000)


async def test_what_libraries_print_does_not_reach_the_parent(sandbox: Sandbox) -> None:
    assert await sandbox.run("t", "chatter") == 0
    assert await sandbox.run("t", "echo", 1) == 1


async def test_outcomes_are_kept_per_tenant_refusals_too(sandbox: Sandbox, tmp_path: Path) -> None:
    path = str(tmp_path / "calls")
    assert [await sandbox.run(tenant, "count", path) for tenant in ("a", "a", "b", "a", "b")] == [
        1,
        1,
        2,
        1,
        2,
    ]
    for task, arguments in (("spin", ()), ("crash", (int(signal.SIGSEGV),)), ("refuse", ())):
        with pytest.raises(InvalidRequest):
            await sandbox.run("t", task, *arguments)
        pids = sandbox.pids
        with pytest.raises(InvalidRequest):
            await sandbox.run("t", task, *arguments)
        assert sandbox.pids == pids, "a refusal was compiled again"


async def test_identical_calls_under_way_are_one(sandbox: Sandbox, fifo: Path) -> None:
    calls = [asyncio.create_task(sandbox.run("t", "hold", str(fifo))) for _ in range(3)]
    await release(fifo)
    assert await asyncio.gather(*calls) == ["go"] * 3


async def test_tenants_take_turns(sandbox: Sandbox, fifo: Path) -> None:
    """One has filled its queue before the other comes, who is next all the same."""
    order: list[str] = []

    async def call(tenant: str, value: str) -> None:
        order.append(await sandbox.run(tenant, "echo", value))

    held = asyncio.create_task(sandbox.run("greedy", "hold", str(fifo)))
    await asyncio.sleep(0)
    calls = [asyncio.create_task(call("greedy", f"greedy {n}")) for n in range(5)]
    await asyncio.sleep(0)
    calls += [asyncio.create_task(call("modest", f"modest {n}")) for n in range(2)]
    await asyncio.sleep(0)
    await release(fifo)
    await asyncio.gather(held, *calls)
    assert order == ["greedy 0", "modest 0", "greedy 1", "modest 1", "greedy 2", "greedy 3", "greedy 4"]


async def test_a_tenant_has_one_child_though_there_are_two(fifo: Path) -> None:
    async with opened(processes=2) as sandbox:
        held = asyncio.create_task(sandbox.run("greedy", "hold", str(fifo)))
        second = asyncio.create_task(sandbox.run("greedy", "echo", 1))
        assert await sandbox.run("modest", "echo", 2) == 2
        assert not second.done()
        await release(fifo)
        assert await asyncio.gather(held, second) == ["go", 1]


async def test_waiting_calls_of_a_tenant_are_bounded(fifo: Path) -> None:
    async with opened(waiting=2) as sandbox:
        calls = [asyncio.create_task(sandbox.run("greedy", "hold", str(fifo)))]
        calls += [asyncio.create_task(sandbox.run("greedy", "echo", n)) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await sandbox.run("greedy", "echo", "one too many")
        other = asyncio.create_task(sandbox.run("modest", "echo", "mine"))
        await release(fifo)
        assert await asyncio.gather(*calls, other) == ["go", 0, 1, "mine"]


async def test_a_call_that_nobody_waits_for_any_more_is_not_run(
    sandbox: Sandbox, fifo: Path, tmp_path: Path
) -> None:
    held = asyncio.create_task(sandbox.run("t", "hold", str(fifo)))
    waiting = asyncio.create_task(sandbox.run("t", "count", str(tmp_path / "calls")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await release(fifo)
    await held
    assert await sandbox.run("t", "echo", 1) == 1
    assert not (tmp_path / "calls").exists()


async def test_a_call_that_runs_is_finished_for_those_who_come_later(sandbox: Sandbox, fifo: Path) -> None:
    left = asyncio.create_task(sandbox.run("t", "hold", str(fifo)))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    again = asyncio.create_task(sandbox.run("t", "hold", str(fifo)))
    await release(fifo)
    assert await again == "go"


async def test_a_child_that_is_blocked_is_ended(fifo: Path) -> None:
    async with opened(timeout_s=0.01) as sandbox:
        with pytest.raises(Unavailable):
            await sandbox.run("t", "hold", str(fifo))
        assert sandbox.pids == []


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere"])
async def test_a_child_that_cannot_start_is_told_to_client_and_operator(
    executable: str, sandbox: Sandbox, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", executable)
        with pytest.raises(Unavailable):
            await sandbox.run("t", "echo", 1)
    assert "cannot be started" in caplog.text
    assert await sandbox.run("t", "echo", 1) == 1, "that was nobody's refusal"


async def test_closing_ends_the_children_and_all_who_wait(fifo: Path) -> None:
    async with opened() as sandbox:
        calls = [asyncio.create_task(sandbox.run("t", "hold", str(fifo)))]
        calls.append(asyncio.create_task(sandbox.run("t", "echo", 1)))
        await until(lambda: bool(sandbox.pids))
        await sandbox.close()
        assert all(
            isinstance(told, Unavailable) for told in await asyncio.gather(*calls, return_exceptions=True)
        )
        assert sandbox.pids == []
        with pytest.raises(Unavailable):
            await sandbox.run("t", "echo", 2)


async def test_a_child_knows_nothing_of_the_server(sandbox: Sandbox, monkeypatch: Any) -> None:
    monkeypatch.setenv("SLIPRING_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        seen = await sandbox.run("t", "whoami")
    assert "SLIPRING_API_KEY" not in seen["environment"]
    assert set(seen["files"]) <= {"/dev/null", "pipe", "socket", ""} or os.name != "posix"
    assert seen["niceness"] >= 10
    assert seen["ignored"] == ["SIGINT", "SIGTERM", "SIGHUP"]
    os.kill(seen["pid"], signal.SIGTERM)
    assert await sandbox.run("t", "echo", 1) == 1
    assert sandbox.pids == [seen["pid"]]


PARENT = """
import asyncio, os, signal
from slipring.sandbox.sandbox import Sandbox
from slipring.sandbox.compile_limits import Bounds

async def main():
    sandbox = Sandbox(Bounds(), {"echo": "tests.sandbox.tasks"})
    await sandbox.run("t", "echo", 1)
    print(sandbox.pids[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_child_ends_with_its_parent_however_that_ends() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await parent.communicate()
    pid = int(said)
    await until(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def test_it_works_on_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> list[object]:
        async with opened() as sandbox:
            told: list[object] = [await sandbox.run("t", "echo", 1)]
            for task in ("spin", "leave"):
                try:
                    await sandbox.run("t", task)
                except TooExpensive as error:
                    told.append(error.reason[:20])
            return [*told, await sandbox.run("t", "echo", 2)]

    def work() -> list[object]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    assert await asyncio.to_thread(work) == [1, "takes more than 1 s ", "takes more than 1342", 2]


async def test_without_a_server_tasks_run_in_a_thread() -> None:
    with pytest.raises(KeyError):
        await InThread().run("t", "echo", 1)
    assert await InThread().run("t", "check_grammar", "regex", "a+", 1000) is None


# The parts.


def test_the_cache_keeps_what_was_used_last_within_its_bounds() -> None:
    cache = Cache(8 * 3000)  # of which a tenant may fill 3000
    keys = [("a", bytes([n])) for n in range(4)]
    for key in keys[:3]:
        cache.keep(key, Done(key[1]), 400)
    assert cache.find(keys[0]) == Done(b"\x00")
    cache.keep(keys[3], Done(b""), 400)
    assert cache.find(keys[1]) is None, "the least recently used is dropped"
    assert cache.find(keys[0]) is not None
    cache.keep(("a", b"large"), Done(b""), 2500)
    assert cache.find(("a", b"large")) == Done(b"")
    assert cache.find(keys[0]) is None
    cache.keep(("a", b"too large"), Done(b""), 2501)
    assert cache.find(("a", b"too large")) is None
    for tenant in "bcdefghi":
        cache.keep((tenant, b""), Done(b""), 2500)
    assert cache.find(("a", b"large")) is None
    assert cache.used_bytes <= 8 * 3000
    assert cache.find(("i", b"")) is not None


def test_the_queue_takes_from_tenants_in_turn() -> None:
    queue: FairQueue[int] = FairQueue(2)
    queue.put("a", 1)
    queue.put("a", 2)
    with pytest.raises(RateLimited):
        queue.put("a", 3)
    queue.put("b", 4)
    assert queue.take() == ("a", 1)
    assert queue.take() == ("b", 4)
    assert queue.take() is None, "each has one running"
    queue.over("a")
    assert queue.remove("a", 2)
    assert not queue.remove("a", 2)
    assert queue.take() is None
    queue.put("b", 5)
    assert queue.clear() == [5]
