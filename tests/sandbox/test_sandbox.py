"""The sandbox: limits, caching, fairness, and child processes that die."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slipring.base.errors import InvalidRequest, RateLimited, ServerError, TooExpensive, Unavailable
from slipring.sandbox.pipe_messages import MIB, SandboxLimits, Words
from slipring.sandbox.sandbox import TASKS, InThread, Sandbox

NAMES = (
    "echo open_file open_socket count hold spin repeat allocate "
    "retain crash leave reject fail nest chatter whoami"
).split()
TEST_TASKS = dict.fromkeys(NAMES, "tests.sandbox.tasks")
LIMITS = SandboxLimits(timeout_s=1.0, memory_bytes=128 * MIB)
SOON_S = 0.5
"""A limit for tests of tasks that exceed it: they use up all of it."""


@asynccontextmanager
async def opened(**limits: Any) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(replace(LIMITS, **limits), TEST_TASKS)
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
    """Unblock a task that runs ``hold``."""
    await asyncio.to_thread(fifo.write_text, text)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_no_process_is_started_before_the_first_call(sandbox: Sandbox) -> None:
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


async def test_a_call_that_exceeds_its_time_is_killed_and_the_next_call_works() -> None:
    async with opened(timeout_s=SOON_S) as sandbox:
        with pytest.raises(TooExpensive, match=r"more than 0\.5 s of processor time .*compile_timeout_s"):
            await sandbox.run("t", "spin")
        assert await sandbox.run("t", "echo", 1) == 1


async def test_a_call_that_exceeds_its_memory_is_rejected_and_the_next_call_works(sandbox: Sandbox) -> None:
    assert await sandbox.run("t", "allocate", 32 * MIB) == 32 * MIB
    with pytest.raises(TooExpensive, match="compile_memory_bytes"):
        await sandbox.run("t", "allocate", LIMITS.memory_bytes)
    assert await sandbox.run("t", "echo", 1) == 1


async def test_a_child_that_has_grown_is_replaced(sandbox: Sandbox) -> None:
    assert await sandbox.run("t", "retain", MIB) == 1
    before = sandbox.pids
    assert await sandbox.run("t", "retain", LIMITS.memory_bytes * 5 // 8) == 2
    assert sandbox.pids == []
    assert await sandbox.run("t", "retain", 2 * MIB) == 1
    assert sandbox.pids != before


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
async def test_a_child_that_dies_rejects_only_the_call_that_killed_it(sandbox: Sandbox, number: int) -> None:
    with pytest.raises(TooExpensive, match="more than this process can take"):
        await sandbox.run("t", "crash", int(number))
    with pytest.raises(TooExpensive):
        await sandbox.run("t", "leave")
    assert await sandbox.run("t", "echo", 1) == 1


async def test_calls_and_results_are_limited_in_size() -> None:
    async with opened(call_bytes=1000, result_bytes=1000) as sandbox:
        assert await sandbox.run("t", "repeat", 900) == 900 * "x"
        with pytest.raises(TooExpensive, match="expands to more than 1000 bytes"):
            await sandbox.run("t", "repeat", 1000)
        assert await sandbox.run("t", "echo", 900 * "x") == 900 * "x"
        with pytest.raises(TooExpensive, match="has more than 1000 bytes"):
            await sandbox.run("t", "echo", 1000 * "x")


async def test_an_invalid_request_is_raised_again_in_the_parent(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await sandbox.run("t", "reject")
    assert (caught.value.message, caught.value.param, caught.value.code) == ("No.", "tools[1]", "some_code")


async def test_an_unexpected_exception_is_logged_and_hidden_from_the_client(
    sandbox: Sandbox, caplog: Any
) -> None:
    with pytest.raises(ServerError) as caught:
        await sandbox.run("t", "fail")
    assert "unexpected" not in caught.value.message
    assert "unexpected" in caplog.text


async def test_input_that_is_nested_too_deeply_is_rejected(sandbox: Sandbox) -> None:
    with pytest.raises(TooExpensive, match="nested too deeply"):
        await sandbox.run("t", "nest", 10_000)


async def test_a_sealed_child_opens_nothing_after_its_imports(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("secret")
    async with opened(is_sealed=True) as sandbox:
        assert await sandbox.run("t", "open_file", str(path)) == "Too many open files"
        assert await sandbox.run("t", "open_socket") == "Too many open files"
        assert await sandbox.run("t", "echo", 1) == 1
        with pytest.raises(ServerError):
            await sandbox.run("t", "fail")
        assert await sandbox.run("t", "retain", LIMITS.memory_bytes * 5 // 8) == 1
        assert sandbox.pids == [], "its memory is measured nevertheless"
    async with opened() as sandbox:
        assert await sandbox.run("t", "open_file", str(path)) == "secret"


async def test_errors_call_limits_by_their_names() -> None:
    words = Words(
        verb="read", participle="read", subjects="documents", timeout="a", memory="b", size="c", result="d"
    )
    async with opened(timeout_s=SOON_S, call_bytes=1000, result_bytes=1000, words=words) as sandbox:
        for name, task, *arguments in (
            ("a", "spin"),
            ("b", "allocate", LIMITS.memory_bytes),
            ("c", "echo", 2000 * "x"),
            ("d", "repeat", 2000),
        ):
            with pytest.raises(TooExpensive, match=rf"\({name}\)"):
                await sandbox.run("t", str(task), *arguments)


async def test_output_that_libraries_print_does_not_reach_the_parent(sandbox: Sandbox) -> None:
    assert await sandbox.run("t", "chatter") == 0
    assert await sandbox.run("t", "echo", 1) == 1


async def test_outcomes_are_cached_per_tenant_rejections_included(tmp_path: Path) -> None:
    path = str(tmp_path / "calls")
    async with opened(timeout_s=SOON_S) as sandbox:
        counts = [await sandbox.run(tenant, "count", path) for tenant in ("a", "a", "b", "a", "b")]
        assert counts == [1, 1, 2, 1, 2]
        for task, arguments in (("spin", ()), ("crash", (int(signal.SIGSEGV),)), ("reject", ())):
            with pytest.raises(InvalidRequest):
                await sandbox.run("t", task, *arguments)
            pids = sandbox.pids
            with pytest.raises(InvalidRequest):
                await sandbox.run("t", task, *arguments)
            assert sandbox.pids == pids, "a rejected call was compiled again"


async def test_concurrent_equal_calls_run_once(sandbox: Sandbox, fifo: Path) -> None:
    calls = [asyncio.create_task(sandbox.run("t", "hold", str(fifo))) for _ in range(3)]
    await release(fifo)
    assert await asyncio.gather(*calls) == ["go"] * 3


async def test_tenants_take_turns(sandbox: Sandbox, fifo: Path) -> None:
    """A tenant with a full queue does not delay the first call of another."""
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


async def test_a_tenant_uses_one_child_even_if_two_are_idle(fifo: Path) -> None:
    async with opened(processes=2) as sandbox:
        held = asyncio.create_task(sandbox.run("greedy", "hold", str(fifo)))
        second = asyncio.create_task(sandbox.run("greedy", "echo", 1))
        assert await sandbox.run("modest", "echo", 2) == 2
        assert not second.done()
        await release(fifo)
        assert await asyncio.gather(held, second) == ["go", 1]


async def test_waiting_calls_of_a_tenant_are_limited(fifo: Path) -> None:
    async with opened(waiting=2) as sandbox:
        calls = [asyncio.create_task(sandbox.run("greedy", "hold", str(fifo)))]
        calls += [asyncio.create_task(sandbox.run("greedy", "echo", n)) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await sandbox.run("greedy", "echo", "one too many")
        other = asyncio.create_task(sandbox.run("modest", "echo", "mine"))
        await release(fifo)
        assert await asyncio.gather(*calls, other) == ["go", 0, 1, "mine"]


async def test_a_waiting_call_whose_caller_is_cancelled_is_not_run(
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


async def test_a_running_call_whose_caller_is_cancelled_still_serves_later_callers(
    sandbox: Sandbox, fifo: Path
) -> None:
    left = asyncio.create_task(sandbox.run("t", "hold", str(fifo)))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    again = asyncio.create_task(sandbox.run("t", "hold", str(fifo)))
    await release(fifo)
    assert await again == "go"


async def test_a_blocked_child_is_killed(fifo: Path) -> None:
    async with opened(timeout_s=0.01) as sandbox:
        with pytest.raises(Unavailable):
            await sandbox.run("t", "hold", str(fifo))
        assert sandbox.pids == []


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere"])
async def test_a_child_that_cannot_start_is_a_503_and_a_log_line(
    executable: str, sandbox: Sandbox, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", executable)
        with pytest.raises(Unavailable):
            await sandbox.run("t", "echo", 1)
    assert "cannot start the process" in caplog.text
    assert await sandbox.run("t", "echo", 1) == 1, "the failure is not cached"


async def test_closing_kills_the_children_and_fails_all_calls(fifo: Path) -> None:
    async with opened() as sandbox:
        calls = [asyncio.create_task(sandbox.run("t", "hold", str(fifo)))]
        calls.append(asyncio.create_task(sandbox.run("t", "echo", 1)))
        await until(lambda: bool(sandbox.pids))
        await sandbox.close()
        assert all(
            isinstance(result, Unavailable) for result in await asyncio.gather(*calls, return_exceptions=True)
        )
        assert sandbox.pids == []
        with pytest.raises(Unavailable):
            await sandbox.run("t", "echo", 2)


async def test_a_child_inherits_no_secrets_and_no_descriptors(sandbox: Sandbox, monkeypatch: Any) -> None:
    monkeypatch.setenv("SLIPRING_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        seen = await sandbox.run("t", "whoami")
    assert "SLIPRING_API_KEY" not in seen["environment"]
    its_own_memory = f"/proc/{seen['pid']}/statm"
    assert set(seen["files"]) <= {"/dev/null", "pipe", "socket", "", its_own_memory} or os.name != "posix"
    assert seen["niceness"] >= 10
    assert seen["ignored"] == ["SIGINT", "SIGTERM", "SIGHUP"]
    os.kill(seen["pid"], signal.SIGTERM)
    assert await sandbox.run("t", "echo", 1) == 1
    assert sandbox.pids == [seen["pid"]]


PARENT = """
import asyncio, os, signal
from slipring.sandbox.sandbox import Sandbox, SandboxLimits

async def main():
    sandbox = Sandbox(SandboxLimits(), {"echo": "tests.sandbox.tasks"})
    await sandbox.run("t", "echo", 1)
    print(sandbox.pids[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_child_exits_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await parent.communicate()
    pid = int(output)
    await until(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def test_the_sandbox_works_on_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> list[object]:
        async with opened(timeout_s=SOON_S) as sandbox:
            results: list[object] = [await sandbox.run("t", "echo", 1)]
            for task in ("spin", "leave"):
                try:
                    await sandbox.run("t", task)
                except TooExpensive as error:
                    results.append(error.reason[:20])
            return [*results, await sandbox.run("t", "echo", 2)]

    def work() -> list[object]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    assert await asyncio.to_thread(work) == [1, "takes more than 0.5 ", "takes more than 1342", 2]


async def test_without_a_server_tasks_run_in_a_thread() -> None:
    with pytest.raises(KeyError):
        await InThread().run("t", "echo", 1)
    assert await InThread().run("t", "check_grammar", "regex", "a+", 1000) is None


async def test_a_child_imports_no_event_loop_engine_or_tokenizer() -> None:
    """They would take more than half of the time that a child takes to start."""
    modules = ", ".join(sorted(set(TASKS.values())))
    code = f"import sys, slipring.sandbox.child, {modules}; print(*sys.modules)"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    unneeded = {"asyncio", "tokenizers", "slipring.engines.base", "slipring.engines.simulated"}
    assert not unneeded.intersection(output.decode().split())
