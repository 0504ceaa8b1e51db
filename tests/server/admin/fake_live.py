"""``python -m tests.server.admin.fake_live``: an admin listener with the live page and invented traffic.

Connections, turns and engines come from seeded randomness, through the message types of the real stream, so
that the page can be developed, tested and photographed with any number of connections.
"""

import argparse
import asyncio
import heapq
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
from aiohttp import web

import slipring.server
from slipring.observation import live_messages
from slipring.observation.drawing_files import DRAWINGS
from slipring.protocol.turn_report import Mark, Stage, StageName, StepCounts, TokenCounts, TurnReport

PAGE = Path(slipring.server.__file__).parent / "admin" / "page"
FILES = {path.name: path for folder in (PAGE, DRAWINGS) for path in folder.iterdir()}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
STAGES: tuple[StageName, ...] = get_args(StageName)
PHASES = {
    **{"decode": "waiting", "queue": "waiting", "resolve": "loading", "validate": "checking"},
    **{"weigh": "preparing", "compact": "preparing", "render": "preparing", "engine_queue": "waiting"},
    **{"prefill": "running", "generate": "running", "client": "paused", "store": "saving"},
    **{"list": "listing", "tools": "calling"},
}
LOOPS = live_messages.Loops(
    capacity_tokens=620_000,
    held_tokens=561_400,
    running=3,
    paused=2,
    waiting=1,
    listed=[
        live_messages.Loop(
            *("umbrella", "waiting", 4.2, 71_300, 9),
            why="22,900 tokens are free (running: 3, paused: 2), acme holds most (280,100)",
        ),
        live_messages.Loop("acme", "running", 0.0, 148_200, 31),
        live_messages.Loop("acme", "paused", 1.6, 131_900, 24, "run_tests", 3.8),
        live_messages.Loop("globex", "running", 0.0, 118_400, 20),
        live_messages.Loop("initech", "running", 0.0, 94_700, 16),
        live_messages.Loop("globex", "paused", 0.4, 68_200, 11, "read_file", 0.3),
    ],
)
"""Loops of agents that share the KV cache of one engine."""
TENANTS = ("acme", "globex", "initech", "umbrella", "default")
_RECENT = 16


class Lane:
    """One lane of a connection, or a source of HTTP requests if it has none."""

    def __init__(self, connection: "Peer | None", name: str | None) -> None:
        self.connection = connection
        self.name = name
        self.previous: str | None = None
        self.context_tokens = 0
        self.context_bytes = 0
        self.depth = 0
        self.turn: live_messages.Turn | None = None


class Peer:
    """One invented connection."""

    def __init__(self, number: int, tenant: str, opened_at: float, names: list[str | None]) -> None:
        self.number = number
        self.tenant = tenant
        self.opened_at = opened_at
        self.lanes = [Lane(self, name) for name in names]
        self.recent: deque[live_messages.Turn] = deque(maxlen=_RECENT)
        self.nodes: deque[live_messages.Node] = deque(maxlen=120)
        self.turns_ended = 0
        self.has_changed = True


class Simulation:
    """The traffic of one process."""

    def __init__(self, process: int, connections: int, now: float, *, seed: int, history_s: float) -> None:
        self.process = process
        self.now = now - history_s
        self.needs_key = False
        self._dice = random.Random(f"{seed}/{process}")
        self._numbers = 0
        self._counter = 0
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._peers: dict[int, Peer] = {}
        self._closed: list[int] = []
        self._ended: list[live_messages.Turn] = []
        self._http_ended: deque[live_messages.Turn] = deque(maxlen=_RECENT)
        self._http = [Lane(None, None) for _ in range(3 if connections else 0)]
        self._slots: list[tuple[str | None, str | None, int]] = [(None, None, 0)] * 4
        self._turns: dict[str, int] = {}
        self._tokens = dict.fromkeys(("rendered", "input", "cached", "output", "reasoning"), 0)
        self._bytes = [0, 0]
        self._fallbacks: dict[str, int] = {}
        for _ in range(connections):
            self._open(self.now + self._dice.uniform(0, 30))
        for lane in self._http:
            self._later(self.now + self._dice.uniform(0, 20), partial(self._begin, lane))
        self.advance(now)

    def advance(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            at, _, act = heapq.heappop(self._due)
            act(at)
        self.now = now

    def _later(self, at: float, act: Callable[[float], None]) -> None:
        self._counter += 1
        heapq.heappush(self._due, (at, self._counter, act))

    def _open(self, at: float) -> None:
        self._numbers += 1
        dice = self._dice
        lanes = dice.choices((1, 2, 3), (8, 2, 1))[0]
        names = [None, *(f"sub-{number}" for number in range(1, lanes))]
        peer = Peer(self._numbers, dice.choice(TENANTS), at, names)
        self._peers[peer.number] = peer
        for lane in peer.lanes:
            self._later(at + dice.expovariate(0.2), partial(self._begin, lane))

    def _begin(self, lane: Lane, at: float) -> None:
        if lane.connection is not None and lane.connection.number not in self._peers:
            return
        lane.turn = self._planned(lane, at)
        if lane.connection is not None:
            lane.connection.has_changed = True
        self._later(at + lane.turn.report.total_ms / 1000, partial(self._end, lane))

    def _planned(self, lane: Lane, at: float) -> live_messages.Turn:
        dice, peer = self._dice, lane.connection
        marks: list[Mark] = []
        if peer is not None and lane.name and lane.previous is None and peer.lanes[0].previous:
            first = peer.lanes[0]
            lane.previous, lane.depth = first.previous, first.depth
            lane.context_tokens, lane.context_bytes = first.context_tokens, first.context_bytes
            marks.append("fork")
        elif lane.previous is None and dice.random() < 0.3:
            marks.append("warmup")
        elif dice.random() < 0.04:
            marks.append("steered")
        if lane.context_tokens > 60_000:
            marks.append("compaction")
        is_rollout = peer is not None and dice.random() < 0.05
        if is_rollout:
            marks.append("rollout")
        calls = dice.randint(1, 3) if peer is not None and not is_rollout and dice.random() < 0.08 else 0
        transport = "websocket" if peer else dice.choice(("sse", "sse", "http", "background"))
        if transport == "background":
            marks.append("background")
        request_bytes = int(dice.lognormvariate(7.6, 1.1)) + 120
        new_tokens = max(4, request_bytes // 4)
        fallback = "the template drops earlier thoughts" if dice.random() < 0.03 else msgspec.UNSET
        status = dice.choices(("completed", "failed", "cancelled", "incomplete"), (94, 2, 2, 2))[0]
        output = 0 if "warmup" in marks else int(dice.lognormvariate(4.6, 0.8)) + 3
        input_tokens = lane.context_tokens + new_tokens
        cached = 0 if dice.random() < 0.03 else max(0, lane.context_tokens - 3)
        steps = dice.randint(2, 4) if is_rollout else 1 + calls
        stages = self._stages(marks, input_tokens - cached, output, steps, "tools" if calls else "client")
        response = f"resp_{dice.getrandbits(96):024x}"
        history_bytes = lane.context_bytes
        if "compaction" in marks:
            lane.context_tokens, lane.context_bytes = 2_000, 8_000
        report = TurnReport(
            status=status,
            request_bytes=request_bytes,
            stages=stages,
            total_ms=stages[-1].start_ms + stages[-1].duration_ms,
            response_id=response,
            previous_response_id=lane.previous or msgspec.UNSET,
            model="smollm2-135m-instruct",
            input_items=dice.randint(1, 4),
            send_ms=round(dice.expovariate(1), 2),
            tokens=TokenCounts(
                rendered=input_tokens if fallback is not msgspec.UNSET else new_tokens,
                input=input_tokens,
                cached=cached,
                output=output,
                reasoning=output // 3,
            ),
            fallback=fallback,
            error_code="server_error" if status == "failed" else msgspec.UNSET,
            history_bytes=history_bytes or msgspec.UNSET,
            marks=tuple(marks) or msgspec.UNSET,
            steps=[StepCounts(new_tokens, output // steps)] * steps if steps > 1 else msgspec.UNSET,
            hosted_calls=calls or msgspec.UNSET,
        )
        tenant = peer.tenant if peer else dice.choice(TENANTS)
        return live_messages.Turn(at, report, transport, tenant, peer.number if peer else 0, lane.name)

    def _stages(
        self, marks: list[Mark], new: int, output: int, steps: int, between: StageName
    ) -> list[Stage]:
        dice = self._dice
        spent: list[tuple[StageName, float]] = [
            ("decode", dice.uniform(0.05, 0.6)),
            ("queue", dice.expovariate(1 / 300) if dice.random() < 0.08 else 0.01),
            ("resolve", dice.uniform(0.02, 2)),
            ("validate", dice.uniform(0.1, 3)),
        ]
        if "compaction" in marks:
            spent += [("weigh", 4.0), ("compact", dice.uniform(800, 2500))]
        if between == "tools":
            spent.append(("list", dice.uniform(20, 200)))
        for step in range(steps):
            spent += [
                ("render", dice.uniform(0.3, 12)),
                ("engine_queue", dice.expovariate(1 / 600) if dice.random() < 0.15 else 0.1),
                ("prefill", 30 + new * dice.uniform(0.08, 0.3)),
            ]
            if output:
                spent.append(("generate", output * dice.uniform(8, 16)))
            if step < steps - 1:
                spent.append((between, dice.uniform(200, 2500)))
        spent += [("store", dice.uniform(0.4, 9)), ("terminal", 0.1)]
        made, start = [], 0.0
        for name, ms in spent:
            made.append(Stage(name, round(start, 3), round(ms, 3)))
            start += ms
        return made

    def _end(self, lane: Lane, at: float) -> None:
        turn, peer = lane.turn, lane.connection
        assert turn is not None
        lane.turn = None
        report, tokens = turn.report, turn.report.tokens
        assert isinstance(tokens, TokenCounts)
        assert isinstance(report.response_id, str)
        self._ended.append(turn)
        self._turns[report.status] = self._turns.get(report.status, 0) + 1
        for kind in self._tokens:
            self._tokens[kind] += getattr(tokens, kind)
        self._bytes[0] += report.request_bytes
        self._bytes[1] += report.history_bytes or 0
        if isinstance(report.fallback, str):
            self._fallbacks[report.fallback] = self._fallbacks.get(report.fallback, 0) + 1
        if report.status in ("completed", "incomplete"):
            self._continue(lane, turn, tokens)
        if peer is None:
            self._http_ended.append(turn)
        else:
            peer.turns_ended += 1
            peer.recent.append(turn)
            peer.has_changed = True
        self._after(lane, at)

    def _continue(self, lane: Lane, turn: live_messages.Turn, tokens: TokenCounts) -> None:
        """The response is the parent of the lane's next one."""
        report, peer = turn.report, lane.connection
        assert isinstance(report.response_id, str)
        parent = lane.previous
        lane.previous = report.response_id
        lane.depth += 1
        lane.context_tokens = tokens.input + tokens.output
        lane.context_bytes += report.request_bytes + tokens.output * 5
        slot = self._dice.randrange(len(self._slots))
        self._slots[slot] = (turn.tenant, report.response_id, lane.context_tokens)
        if peer is None:
            if self._dice.random() < 0.3:
                lane.previous, lane.context_tokens, lane.context_bytes, lane.depth = None, 0, 0, 0
            return
        peer.nodes.append(
            live_messages.Node(
                id=report.response_id,
                parent=parent,
                lane=lane.name,
                depth=lane.depth,
                created_at=int(turn.started_at),
                size_bytes=report.request_bytes * 3 + tokens.output * 12,
                context_bytes=lane.context_bytes,
                tokens=lane.context_tokens,
                items=lane.depth * 3,
                is_latest=False,
                is_stored=lane.depth % 3 == 0,
                marks=report.marks or (),
            )
        )

    def _after(self, lane: Lane, at: float) -> None:
        dice, peer = self._dice, lane.connection
        if peer is not None and dice.random() < 0.004 and len(self._peers) > 1:
            self._closed.append(peer.number)
            self._peers.pop(peer.number, None)
            self._open(at + dice.uniform(0.1, 3))
            return
        pause = dice.choices((dice.uniform(0.1, 1), dice.uniform(1, 6), dice.uniform(10, 60)), (5, 5, 1))[0]
        self._later(at + pause, partial(self._begin, lane))

    def _unended(self, turn: live_messages.Turn) -> live_messages.Turn:
        """What is known of a turn while it runs."""
        passed = (self.now - turn.started_at) * 1000
        ended = [each for each in turn.report.stages if each.start_ms + each.duration_ms <= passed]
        following = turn.report.stages[min(len(ended), len(turn.report.stages) - 1)]
        report = msgspec.structs.replace(
            turn.report,
            status=PHASES.get(following.name, "running"),
            stages=ended,
            total_ms=round(passed, 3),
            tokens=msgspec.UNSET,
            error_code=msgspec.UNSET,
        )
        return msgspec.structs.replace(turn, report=report)

    def connection(self, peer: Peer, *, is_complete: bool) -> live_messages.Connection:
        return live_messages.Connection(
            number=peer.number,
            tenant=peer.tenant,
            opened_at=peer.opened_at,
            cache=live_messages.Memory(sum(node.size_bytes for node in peer.nodes), 8_000_000),
            responses=len(peer.nodes),
            lanes=len(peer.lanes),
            turns_ended=peer.turns_ended,
            unsent_bytes=0,
            running=[self._unended(lane.turn) for lane in peer.lanes if lane.turn],
            recent=list(peer.recent) if is_complete else msgspec.UNSET,
        )

    def detail(self, number: int) -> live_messages.ConnectionDetail | None:
        peer = self._peers.get(number)
        if peer is None:
            return None
        kept = {node.id for node in peer.nodes}
        latest = {lane.previous for lane in peer.lanes}
        nodes = [
            msgspec.structs.replace(
                node, parent=node.parent if node.parent in kept else None, is_latest=node.id in latest
            )
            for node in peer.nodes
        ]
        return live_messages.ConnectionDetail(
            self.connection(peer, is_complete=True), nodes, is_complete=True
        )

    def update(self, *, is_complete: bool) -> live_messages.Update:
        peers = list(self._peers.values())
        running = sum(lane.turn is not None for peer in peers for lane in peer.lanes)
        http = [self._unended(lane.turn) for lane in self._http if lane.turn]
        changed = [peer for peer in peers if is_complete or peer.has_changed or any(_running(peer))]
        made = live_messages.Update(
            process=self.process,
            pid=4000 + self.process,
            now=self.now,
            is_complete=is_complete,
            memory={
                "states": live_messages.Memory(sum(len(peer.nodes) for peer in peers) * 9000, 256_000_000),
                "parked": live_messages.Memory(3_400_000, 64_000_000),
                "recognised": live_messages.Memory(11_800_000, 32_000_000),
                "requests": live_messages.Memory(running * 40_000, 128_000_000),
                "unread": live_messages.Memory(0, 64_000_000),
                "compiled": live_messages.Memory(2_100_000, 16_000_000),
            },
            tenants=[
                live_messages.TenantMemory(name, 40_000_000 - 7_000_000 * index, 64_000_000)
                for index, name in enumerate(TENANTS)
            ],
            resident_bytes=212_000_000 + len(peers) * 41_000,
            cpu_s=self.now % 100_000 * 0.07,
            loop_lag_ms=round(self._dice.expovariate(1.2), 2),
            sockets=len(peers),
            in_flight=running + len(http),
            waiting=sum(turn.report.status == "waiting" for turn in http),
            is_draining=False,
            needs_key=self.needs_key,
            engines=self._engines(running),
            parked=[
                live_messages.Parked(name, 4 + index, 420_000 * (index + 1), 20 + 40 * index - self.now % 20)
                for index, name in enumerate(TENANTS[:3])
            ],
            parked_sessions=3,
            totals=live_messages.Totals(
                dict(self._turns), dict(self._tokens), self._bytes[0], self._bytes[1], dict(self._fallbacks)
            ),
            connections=[self.connection(peer, is_complete=is_complete) for peer in changed],
            closed=[] if is_complete else self._closed,
            http=http,
            turns=list(self._http_ended) if is_complete else self._ended,
            turns_missed=0,
        )
        self._closed, self._ended = [], []
        for peer in peers:
            peer.has_changed = False
        return made

    def _engines(self, running: int) -> list[live_messages.Engine]:
        slots = [
            live_messages.Slot(number, "busy" if number < running else "idle", tokens, tenant, chain)
            for number, (tenant, chain, tokens) in enumerate(self._slots)
        ]
        saved = [
            live_messages.SavedContext(
                TENANTS[number], 9_000 - 2_100 * number, 61_000_000 - 14_000_000 * number, None
            )
            for number in range(3)
        ]
        memory = live_messages.Memory(sum(each.size_bytes for each in saved), 512_000_000)
        return [
            live_messages.Engine(
                name="llama",
                models=["smollm2-135m-instruct"],
                trouble=None,
                running=min(4, running),
                waiting=max(0, running - 4),
                breaker="none",
                slots=slots,
                saved=saved,
                saved_memory=memory,
            ),
            live_messages.Engine(
                name="vllm",
                models=["qwen3-32b"],
                trouble=None,
                running=3,
                waiting=1,
                breaker="closed",
                loops=LOOPS,
            ),
            live_messages.Engine(
                name="chat",
                models=["qwen3-8b"],
                trouble="connection refused",
                running=0,
                waiting=0,
                breaker="open",
                slots=[],
                saved=[],
                saved_memory=None,
            ),
        ]


def _running(peer: Peer) -> list[live_messages.Turn]:
    return [lane.turn for lane in peer.lanes if lane.turn]


class FakeAdmin:
    """The admin listener. ``key``: what requests must present; None: nothing."""

    def __init__(
        self,
        connections: int,
        *,
        workers: int = 1,
        seed: int = 1,
        history_s: float = 120.0,
        key: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.key = key
        self.streams = 0
        """Streams that are open."""
        self.started = 0
        """Streams that have been opened."""
        self.interval_s = 0.5
        self._clock = clock
        now = clock()
        share = -(-connections // workers)
        self.simulations = [
            Simulation(number, share, now, seed=seed, history_s=history_s) for number in range(workers)
        ]
        self._cut = asyncio.Event()
        self._counted = asyncio.Condition()

    async def counts(self, streams: int) -> None:
        """Wait until so many streams are open."""
        async with self._counted:
            await self._counted.wait_for(lambda: self.streams == streams)

    async def _count(self, change: int) -> None:
        async with self._counted:
            self.streams += change
            self._counted.notify_all()

    def cut(self) -> None:
        """End all streams."""
        self._cut.set()
        self._cut = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._headers])
        app.router.add_get("/live", self._live)
        app.router.add_get("/live/connections/{process}/{number}", self._connection)
        app.router.add_get("/{name:[a-z_]*(?:\\.[a-z]+)?}", self._file)
        return app

    @web.middleware
    async def _headers(self, request: web.Request, handler: Callable[..., object]) -> web.StreamResponse:
        answer = await handler(request)  # type: ignore[misc]
        assert isinstance(answer, web.StreamResponse)
        if not answer.prepared:
            answer.headers["Content-Security-Policy"] = POLICY
        return answer

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = FILES.get(request.match_info["name"] or "index.html")
        if path is None:
            raise web.HTTPNotFound
        return web.Response(
            body=path.read_bytes(), content_type=TYPES[path.suffix], charset="utf-8", headers={}
        )

    def _admit(self, request: web.Request) -> None:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized

    async def _connection(self, request: web.Request) -> web.StreamResponse:
        self._admit(request)
        process, number = int(request.match_info["process"]), int(request.match_info["number"])
        detail = self.simulations[process].detail(number) if process < len(self.simulations) else None
        if detail is None:
            raise web.HTTPNotFound
        return web.Response(body=msgspec.json.encode(detail), content_type="application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        self._admit(request)
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        await self._count(1)
        self.started += 1
        cut = self._cut
        try:
            now = self._clock()
            greeting = live_messages.Greeting(
                version=slipring.__version__,
                started_at=now - 3725,
                now=now,
                interval_s=self.interval_s,
                api_url="http://127.0.0.1:8000/v1",
                workers=len(self.simulations),
                departed=live_messages.Totals(),
            )
            await stream.write(live_messages.encode(greeting))
            is_first = True
            while not cut.is_set():
                for simulation in self.simulations:
                    simulation.advance(self._clock())
                    await stream.write(live_messages.encode(simulation.update(is_complete=is_first)))
                is_first = False
                try:
                    await asyncio.wait_for(cut.wait(), self.interval_s)
                except TimeoutError:
                    continue
        except ConnectionResetError:
            pass
        finally:
            await asyncio.shield(self._count(-1))
        return stream


@asynccontextmanager
async def serving(fake: FakeAdmin, port: int = 0) -> AsyncIterator[str]:
    """Serve on loopback; the value is the base URL."""
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        fake.cut()
        await runner.cleanup()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=9464)
    parser.add_argument("--key")
    options = parser.parse_args()
    fake = FakeAdmin(options.connections, workers=options.workers, seed=options.seed, key=options.key)
    async with serving(fake, options.port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
