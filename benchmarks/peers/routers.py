"""Chains over several real vLLM servers behind routers: where they go, and what a lost replica costs.

``make routers`` starts vLLM servers of the CPU build with the tiny model, smg and vllm-router in front of
them, and slipring in front of those: the engine ``vllm`` through vllm-router, with sessions and without, and
``chat`` through smg, which takes no token ids. It checks, for each number of replicas:

- 100 chains with forks and warmups spread; every turn finds the context of the turn before;
- a replica that is drained, and one that is killed, cost each of its chains one prefill and no turn;
- more loops than fit the caches: slipring counts them on each replica, and they prefill their contexts again
  no more often than once for each loop.

Ends with an error if one of these does not hold. Writes the record, which ``routers_table.py`` shows, if all
ways ran. Needs ``.peers`` (``benchmarks/peers/setup.py``) and ``.venv-router``.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from routers_table import Lost, Record, Row, table, write
from servers import MODEL, ROOT, VLLM, VLLM_PYTHON, cpu_environment, free_port

from slipring.commands.bench.subject import machine

ROUTERS = ROOT / ".venv-router" / "bin"
BLOCKS, BLOCK = 480, 128
"""The KV cache of each replica, for 61,440 tokens."""
WORDS = 700
"""Of the first message of a chain, which no other chain begins with."""
WHOLE = 500
"""A turn that prefills more tokens than this has not found its context."""
CHAINS, AT_ONCE = 100, 10
HEALTH = (
    *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"),
    *("--health-check-timeout-secs", "60", "--health-failure-threshold", "2"),
    *("--health-success-threshold", "1"),
)
"""A replica that is killed refuses its health checks at once. One that is busy, with others on two cores, may
answer late, and must not be taken for dead: its chains would move."""
STAY = ("--disable-worker-overload-protection", "--worker-wedge-secs", "120")
"""By default smg sends the chains of a replica elsewhere while its KV cache is fuller than 80 %, or it has
emitted nothing for 3 seconds, as of its last look, which may be 10 seconds old."""


@dataclass
class Way:
    """How slipring reaches the replicas."""

    name: str
    command: tuple[str, ...]
    engine: str
    counts_replicas: bool = True
    """Whether its loops are scheduled, which needs token ids."""
    has_sessions: bool = False


WAYS = [
    Way(
        "vllm-router", ("vllm-router", "--policy", "consistent_hash"), "vllm:URL,tokenizer=FILES,sessions=off"
    ),
    Way(
        "vllm-router, sessions",
        ("vllm-router", "--policy", "consistent_hash"),
        "vllm:URL,tokenizer=FILES,sessions=on",
        has_sessions=True,
    ),
    Way("smg", ("smg", "launch", "--policy", "consistent_hashing", *STAY), "chat:URL/v1,model=tiny", False),
]


class Program:
    """A process that answers at an address. Its output goes to a file."""

    def __init__(
        self, name: str, command: Sequence[str], url: str, health: str, log: Path, **env: str
    ) -> None:
        self.name, self.command, self.url, self._health = name, command, url, health
        self._log, self._env = log, env
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        known = {key: value for key, value in os.environ.items() if not key.startswith("SLIPRING_")}
        with self._log.open("ab") as file:
            self._process = await asyncio.create_subprocess_exec(
                *self.command, stdout=file, stderr=file, env={**known, **self._env}, start_new_session=True
            )

    async def ready(self, http: aiohttp.ClientSession, timeout_s: float = 600) -> None:
        async with asyncio.timeout(timeout_s):
            while not await _answers(http, self.url + self._health):
                if self.has_ended:
                    raise RuntimeError(f"{self.name} has ended: {self._log.read_text()[-3000:]}")
                await asyncio.sleep(0.3)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        process = self._process
        if process is None or self.has_ended:
            return
        os.killpg(process.pid, by)
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


@dataclass
class Chain:
    """One client's chain: what it prefilled, turn by turn."""

    name: str
    socket: aiohttp.ClientWebSocketResponse
    last: str | None = None
    prefilled: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def turn(self, text: str, *, lane: str = "", generate: bool = True) -> int:
        """Run one turn; returns how many tokens it has prefilled. A lane other than the first forks."""
        asked: dict[str, Any] = {"type": "response.create", "model": "tiny", "input": text, "store": False}
        asked |= {"max_output_tokens": 8, "temperature": 0}
        if self.last is not None:
            asked["previous_response_id"] = self.last
        if lane:
            asked["stream_id"] = lane
        if not generate:
            asked["generate"] = False
        await self.socket.send_json(asked)
        while True:
            event = await self.socket.receive_json(timeout=300)
            if event["type"] == "error" or event["type"] == "response.failed":
                error = event.get("error") or event["response"]["error"]
                self.failures.append(json.dumps(error))
                return 0
            if event["type"] in ("response.completed", "response.incomplete"):
                break
        response = event["response"]
        usage = response["usage"]
        prefilled = int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])
        if not lane:
            self.last = response["id"]
            self.prefilled.append(prefilled)
        return prefilled


class Stage:
    """Replicas, and one way to reach them."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        replicas: list[Program],
        way: Way,
        router: str,
        url: str,
        admin: str,
    ) -> None:
        self.http, self.replicas, self.way, self.router, self._url = http, replicas, way, router, url
        self._admin = admin
        self._number = 0
        self.row = Row(way.name, len(replicas))

    @asynccontextmanager
    async def chain(self) -> AsyncIterator[Chain]:
        self._number += 1
        name = f"{self.way.name} {time.time():.3f} {self._number}"
        async with self.http.ws_connect(f"{self._url}/v1/responses", max_msg_size=0) as socket:
            yield Chain(name, socket)

    async def begin(self, chain: Chain) -> None:
        await chain.turn(f"{chain.name}: " + " ".join(f"{chain.name} {at}" for at in range(WORDS // 8)))

    async def requests(self, replica: Program) -> int:
        """How many requests a replica has answered; 0 if it does not answer."""
        return int(await self._metric(replica.url, "vllm:request_success_total{"))

    async def held(self) -> float:
        """The tokens of all caches that slipring schedules."""
        return await self._metric(self._admin, "slipring_engine_loop_tokens{")

    async def _metric(self, url: str, prefix: str) -> float:
        try:
            async with self.http.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
        except aiohttp.ClientError:
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))

    async def workers(self) -> list[dict[str, Any]]:
        async with self.http.get(f"{self.router}/workers") as answer:
            return list((await answer.json())["workers"])

    async def drain(self, replica: Program) -> None:
        """Take a replica out of the router."""
        if self.way.command[0] == "smg":
            (id,) = [each["id"] for each in await self.workers() if each["url"] == replica.url]
            await self._sent("DELETE", f"/workers/{id}")
        else:
            await self._sent("POST", f"/remove_worker?url={replica.url}")
        async with asyncio.timeout(120):  # it may be listed for some time after it is not chosen any more
            while any(each["url"] == replica.url for each in await self.workers()):  # noqa: ASYNC110
                await asyncio.sleep(0.3)

    async def add(self, replicas: Sequence[Program]) -> None:
        """Put replicas behind the router, and wait until it chooses them."""
        for each in replicas:
            if self.way.command[0] == "smg":
                # A replica whose model is not named is asked for it once. If it does not answer at once, smg
                # lists it as ready, with an unknown model, and never chooses it.
                await self._sent("POST", "/workers", {"url": each.url, "models": [{"id": "tiny"}]})
            else:
                await self._sent("POST", f"/add_worker?url={each.url}")
        await self._until_ready({each.url for each in replicas})

    async def _sent(self, method: str, path: str, body: Any = None) -> None:
        async with self.http.request(method, self.router + path, json=body) as answer:
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {await answer.text()}")

    async def _until_ready(self, urls: set[str]) -> None:
        async with asyncio.timeout(120):
            while not urls <= {each["url"] for each in await self.workers() if _is_ready(each)}:  # noqa: ASYNC110
                await asyncio.sleep(0.3)


def _is_ready(worker: dict[str, Any]) -> bool:
    """Whether a router chooses a replica that it lists. smg lists those as healthy that it has not asked."""
    return bool(worker.get("is_healthy", True)) and worker.get("status", "ready") == "ready"


broken: list[str] = []
"""The promises that did not hold."""


def require(holds: bool, words: str) -> None:
    print(f"  {'ok' if holds else 'BROKEN'}: {words}", flush=True)
    if not holds:
        broken.append(words)


async def spread(stage: Stage) -> None:
    """100 chains with forks and warmups."""
    before = [await stage.requests(each) for each in stage.replicas]
    lost: Counter[str] = Counter()
    failures: list[str] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def run() -> None:
        async with gate, stage.chain() as chain:
            await stage.begin(chain)
            for said in ("one", "two"):
                lost["turn"] += await chain.turn(said) > WHOLE
            lost["fork"] += await chain.turn("a fork", lane="fork") > WHOLE
            lost["warmup"] += await chain.turn("read this", generate=False) > WHOLE
            lost["turn after the warmup"] += await chain.turn("three") > WHOLE
            failures.extend(chain.failures)

    await asyncio.gather(*(run() for _ in range(CHAINS)))
    after = [await stage.requests(each) for each in stage.replicas]
    served = [new - old for old, new in zip(before, after, strict=True)]
    least = CHAINS // len(served) // 4
    row = stage.row
    row.ended, row.turns, row.prefilled, row.failed = served, 5 * CHAINS, lost.total(), len(failures)
    require(not failures, f"no turn failed {failures[:2]}")
    require(not any(lost.values()), f"every turn, fork and warmup found its context {dict(lost)}")
    require(min(served) >= least, f"chains spread: requests by replica {served}")


async def lose(stage: Stage, replica: Program, how: str) -> None:
    """Chains of which some are on a replica that is lost."""
    async with AsyncExitStack() as stack:
        count = 6 * len(stage.replicas)
        chains = [await stack.enter_async_context(stage.chain()) for _ in range(count)]
        before = await stage.requests(replica)
        await asyncio.gather(*map(stage.begin, chains))
        await asyncio.gather(*(chain.turn("before") for chain in chains))
        there = (await stage.requests(replica) - before) // 2
        if how == "killed":
            await replica.end(signal.SIGKILL)
        else:
            await stage.drain(replica)
        for said in ("after", "and after that", "and then"):
            await asyncio.gather(*(chain.turn(said) for chain in chains))
        failures = [each for chain in chains for each in chain.failures]
        lost = [sum(tokens > WHOLE for tokens in chain.prefilled[2:]) for chain in chains]
        first = [sum(tokens > WHOLE for tokens in chain.prefilled[1:2]) for chain in chains]
        require(not failures, f"{how}: no turn of {count} chains failed {failures[:2]}")
        known = None if stage.way.has_sessions else there
        stage.row.lost[how] = Lost(count, known, lost, len(failures))
        moved = sum(map(bool, lost))
        words = f"{how}: {moved} of {count} chains prefilled their context again, {sum(lost)} times in all"
        # vLLM counts a session when it ends.
        is_each = 0 < moved < count
        if not stage.way.has_sessions:
            words += f"; {there} were on the replica"
            is_each &= moved == there
        require(max(lost) <= 1 and is_each and not any(first), words)


async def fill(stage: Stage) -> None:
    """More loops than fit the caches of all replicas, in turn."""
    async with AsyncExitStack() as stack:
        room = BLOCKS * BLOCK * len(stage.replicas)
        chains = [await stack.enter_async_context(stage.chain()) for _ in range(10 * len(stage.replicas))]

        async def run(chain: Chain) -> None:
            await stage.begin(chain)
            for turn in range(4):
                await chain.turn(" ".join(f"{chain.name} {turn} {at}" for at in range(90)))

        began = time.monotonic()
        await asyncio.gather(*map(run, chains))
        seconds = time.monotonic() - began
        failures = [each for chain in chains for each in chain.failures]
        # Every later turn adds about as much as the first one.
        again = [sum(tokens > 1.5 * chain.prefilled[0] for tokens in chain.prefilled[1:]) for chain in chains]
        stage.row.again = again
        stage.row.failed += len(failures)
        require(not failures, f"filled: no turn of {len(chains)} loops failed {failures[:2]}")
        words = f"filled: {sum(map(bool, again))} of {len(chains)} loops prefilled their context again,"
        words += f" {sum(again)} times in all, {seconds:.0f} s"
        require(sum(again) <= len(again) or not stage.way.counts_replicas, words)
        if stage.way.counts_replicas:
            scheduled = await stage.held()
            require(0.9 * room < scheduled <= room, f"filled: {scheduled:.0f} of {room} tokens are scheduled")


class Forks:
    """A process that has imported vLLM, of which servers are forked."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        command = (str(VLLM_PYTHON), str(Path(__file__).with_name("vllm_forks.py")))
        env = {
            **cpu_environment(1),
            **{"VLLM_PLUGINS": "slipring_sessions", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
            **{"PYTHONPATH": str(ROOT / "src"), "VLLM_LOGGING_LEVEL": "WARNING"},
        }
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, **env}
        )
        while await self._line() != "ready":  # imports may print something
            pass

    async def fork(self, arguments: Sequence[str], log: Path) -> int:
        """Start a server; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n")
        return int(await self._line())

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("vllm_forks.py has ended")
        return line.decode().strip()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


class Replica(Program):
    """A vLLM server with the plugin of this checkout."""

    def __init__(self, forks: Forks, number: int, log: Path) -> None:
        port = free_port()
        arguments = [
            *("--host", "127.0.0.1", "--port", str(port), "--model", str(MODEL)),
            *("--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "16384"),
            *("--max-num-seqs", "32", "--enforce-eager", "--block-size", str(BLOCK)),
            *("--num-gpu-blocks-override", str(BLOCKS), "--enable-prompt-tokens-details"),
            *("--uvicorn-log-level", "error"),
        ]
        super().__init__(f"vLLM {number}", arguments, f"http://127.0.0.1:{port}", "/health", log)
        self._forks = forks
        self._pid = 0

    async def start(self) -> None:
        self._pid = await self._forks.fork(self.command, self._log)

    @property
    def has_ended(self) -> bool:
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return True
        return not self._pid

    async def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        for each in (by, signal.SIGKILL):
            if self.has_ended:
                return
            os.killpg(self._pid, each)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    while not self.has_ended:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)


@asynccontextmanager
async def replicas(http: aiohttp.ClientSession, count: int, logs: Path) -> AsyncIterator[list[Program]]:
    """vLLM servers, which answer."""
    forks = Forks()
    await forks.start()
    found: list[Program] = [Replica(forks, number, logs / f"vllm{number}.log") for number in range(count)]
    try:
        for each in found:
            await each.start()
        for each in found:
            await each.ready(http)
        yield found
    finally:
        await asyncio.gather(*(each.end() for each in found))
        await forks.end()


@asynccontextmanager
async def reached(
    http: aiohttp.ClientSession, way: Way, servers: list[Program], logs: Path
) -> AsyncIterator[Stage]:
    name, *rest = way.command
    ports = [free_port() for _ in range(4)]
    router = Program(
        name,
        [
            *(str(ROUTERS / name), *rest, "--host", "127.0.0.1", "--port", str(ports[0])),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(ports[1]), *HEALTH),
            *("--log-level", "error"),
        ],
        f"http://127.0.0.1:{ports[0]}",
        "/workers",
        logs / f"{name}.log",
    )
    engine = way.engine.replace("URL", router.url).replace("FILES", str(MODEL))
    slipring = Program(
        "slipring",
        [
            *(sys.executable, "-m", "slipring", "serve", "--port", str(ports[2]), "--engine", engine),
            *("--log-level", "warning", "--admin", f"127.0.0.1:{ports[3]}", "--recognised-s", "0"),
        ],
        f"http://127.0.0.1:{ports[2]}",
        "/v1/models",
        logs / "slipring.log",
        PYTHONPATH=str(ROOT / "src"),
    )
    admin = f"http://127.0.0.1:{ports[3]}"
    stage = Stage(http, servers, way, router.url, slipring.url, admin)
    try:
        await router.start()
        await router.ready(http)
        await stage.add(servers)
        await slipring.start()
        await slipring.ready(http)
        yield stage
    finally:
        await slipring.end()
        await router.end()


async def run(counts: Sequence[int], ways: Sequence[Way], logs: Path) -> list[Row]:
    ended = asyncio.current_task()
    assert ended is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.cancel)
    timeout = aiohttp.ClientTimeout(total=120)
    began = time.monotonic()
    rows = []
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        replicas(http, max(counts), logs) as every,
    ):
        print(f"{len(every)} vLLM servers after {time.monotonic() - began:.0f} s", flush=True)
        for count in counts:
            for way in ways:
                servers = every[:count]
                for each in servers:
                    await each.ready(http)
                print(f"{count} replicas, {way.name}, {time.monotonic() - began:.0f} s", flush=True)
                async with reached(http, way, servers, logs) as stage:
                    await spread(stage)
                    await fill(stage)
                    await lose(stage, servers[-1], "drained")
                    await stage.add(servers[-1:])
                    await lose(stage, servers[0], "killed")
                    rows.append(stage.row)
                await servers[0].start()
                every.append(every.pop(0))  # it is used again last
    print(f"{len(broken)} broken, {time.monotonic() - began:.0f} s", flush=True)
    if broken:
        print((logs / "slipring.log").read_text()[-3000:])
    return rows


def versions() -> dict[str, str]:
    names = ("vllm-router", "smg")
    code = f"import importlib.metadata as it\nfor name in {names}: print(it.version(name))"
    command = [str(ROUTERS / "python"), "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {**machine.versions(), "vllm": VLLM, **dict(zip(names, found, strict=True))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=None)
    args = parser.parse_args()
    ways = [way for way in WAYS if args.ways is None or way.name in args.ways]
    began = time.monotonic()
    with TemporaryDirectory(prefix="slipring-routers-") as logs:
        rows = asyncio.run(run(args.replicas, ways, Path(logs)))
    record = Record(machine.now(), machine.machine(), versions(), round(time.monotonic() - began), rows)
    print(table(record))
    if ways == WAYS and args.replicas == [2, 4]:
        write(record)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
