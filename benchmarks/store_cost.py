"""Measures the cost of storing responses and of loading chains.

Three stores (memory, SQLite in a file, PostgreSQL), each with its own server and an engine that answers at
once. All stores and loads alternate in every round, so that changes in the speed of machine and disk affect
all of them.

- Turns at a WebSocket client: the time from the last output event to ``response.completed``, with ``store``
  and without, for one client and for sixteen at once, which share commits. Then sixteen clients that pause
  between turns, half of them with ``store``: the others must not be delayed. - The floor: rows of the same
  size committed by SQLite alone, one at a time and sixteen at a time. - Chains: the time from the frame to
  ``response.created`` on a server that has just been started, and with the chain cached by the process or by
  the connection. The memory store does not survive a restart; a server with an empty cache replaces it there.
  The simulated engine counts a context from its beginning unless the connection has it cached; the time for
  finding the chain is reported separately.
- Token ids: the time to read a chain with its ids and render the next turn by delta, compared with reading it
  without ids and rendering it in full. Measured in this process; PostgreSQL's own work is only in the wall
  time.

Files are in the page cache: the software is measured, not a cold disk.

    python benchmarks/store_cost.py
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import apsw
from common import Process, keep, slipring, spread
from databases import KINDS, places
from packaged import chatml_renderer, packaged_metadata
from render_cost import begun, exchange, item

from slipring.core.chain.state import ResponseState
from slipring.core.generation import Finished
from slipring.core.turn import delivery, endings
from slipring.prompts.rendering import Rendering
from slipring.prompts.rendering_codec import RenderingCodec
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.stores.store import Store, open_database

Figures = dict[str, list[float]]

ENGINE = "simulated:tokens_per_s=0,output_tokens=8"
TEXT = "def handler(request): return request.body  # line of code\n" * 34
LENGTHS = (1, 10, 50, 200, 1000)
TURN_CHARACTERS = 1_400
"""Size of a tool's output: a turn then has about 500 tokens."""
FLOOR_COMMITS = 40


class Load(NamedTuple):
    """Clients that have conversations at the same time."""

    storing: int
    others: int
    turns: int
    pause_s: float = 0.0
    """Average pause between two turns."""


LOADS = {
    "1 stored": Load(1, 0, 30),
    "1 not stored": Load(0, 1, 30),
    "16 stored": Load(16, 0, 12),
    "16 not stored": Load(0, 16, 12),
    "16 paced, 8 stored": Load(8, 8, 12, 0.06),
    "16 paced, none stored": Load(0, 16, 12, 0.06),
}


# One turn, as a client sees it.


class Seen(NamedTuple):
    response_id: str
    first_ms: float
    """From the frame to ``response.created``."""
    gap_ms: float
    """From the last output event to ``response.completed``."""
    total_ms: float
    stages: dict[str, float]
    """The server's own timings, if requested."""


class Client:
    def __init__(self, ws: aiohttp.ClientWebSocketResponse, *, timing: bool) -> None:
        self._ws = ws
        self._timing = timing

    async def turn(self, previous: str | None, *, store: bool) -> Seen:
        create = {"type": "response.create", "model": "simulated", "input": TEXT, "store": store}
        if previous is not None:
            create["previous_response_id"] = previous
        frame, start = json.dumps(create), time.perf_counter()
        await self._ws.send_str(frame)
        arrivals = []
        while not frame.startswith('{"type":"response.completed"'):
            frame = await self._ws.receive_str()
            arrivals.append(time.perf_counter())
            if frame.startswith(('{"type":"response.failed"', '{"type":"error"')):
                raise RuntimeError(frame)
        stages = json.loads(await self._ws.receive_str())["timing"]["stages"] if self._timing else []
        return Seen(
            response_id=json.loads(frame)["response"]["id"],
            first_ms=(arrivals[0] - start) * 1e3,
            gap_ms=(arrivals[-1] - arrivals[-2]) * 1e3,
            total_ms=(arrivals[-1] - start) * 1e3,
            stages={stage["name"]: stage["duration_ms"] for stage in stages},
        )


@asynccontextmanager
async def client(url: str, *, timing: bool = False) -> AsyncIterator[Client]:
    headers = {"OpenAI-Beta": "slipring_timing=v1"} if timing else {}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.ws_connect(f"{url}/responses", max_msg_size=0) as ws,
    ):
        yield Client(ws, timing=timing)


# Turns: the time added by waiting for the store.


async def converse(each: Client, load: Load, *, store: bool) -> list[Seen]:
    """Run a conversation by id. Its first turn is a warm-up."""
    latest = (await each.turn(None, store=store)).response_id
    seen = []
    for _ in range(load.turns):
        if load.pause_s:
            await asyncio.sleep(random.uniform(0, 2 * load.pause_s))
        seen.append(await each.turn(latest, store=store))
        latest = seen[-1].response_id
    return seen


async def play(url: str, load: Load) -> dict[str, dict[str, float]]:
    """Run all clients of a load at once; return the turns of those with ``store`` and of those without."""
    async with AsyncExitStack() as stack:
        stores = [True] * load.storing + [False] * load.others
        clients = [await stack.enter_async_context(client(url)) for _ in stores]
        start = time.perf_counter()
        conversations = [
            converse(each, load, store=store) for each, store in zip(clients, stores, strict=True)
        ]
        seen = await asyncio.gather(*conversations)
        took_s = time.perf_counter() - start
    groups = {"stored": seen[: load.storing], "not stored": seen[load.storing :]}
    return {name: summed_up(group, took_s) for name, group in groups.items() if group}


def summed_up(conversations: list[list[Seen]], took_s: float) -> dict[str, float]:
    turns = [turn for conversation in conversations for turn in conversation]
    gaps, totals = [turn.gap_ms for turn in turns], [turn.total_ms for turn in turns]
    return {
        "gap_ms": round(statistics.median(gaps), 3),
        "gap_p95_ms": round(p95(gaps), 3),
        "turn_ms": round(statistics.median(totals), 3),
        "turn_p95_ms": round(p95(totals), 3),
        # Includes the warm-up turns, which are part of the elapsed time.
        "per_s": round((len(turns) + len(conversations)) / took_s, 1),
    }


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1) + 0.5)]


def floor(directory: Path, rows: int) -> float:
    """Return the milliseconds per commit of ``rows`` rows by SQLite alone."""
    connection = apsw.Connection(str(directory / "floor.db"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS floor (id TEXT PRIMARY KEY, row BLOB)")
    content = TEXT.encode() + bytes(1500)  # what else a response has: its object, its output
    start = time.perf_counter()
    for _ in range(FLOOR_COMMITS):
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            connection.execute("INSERT INTO floor VALUES (?, ?)", (random.randbytes(12).hex(), content))
        connection.execute("COMMIT")
    took_s = time.perf_counter() - start
    connection.close()
    return round(took_s / FLOOR_COMMITS * 1e3, 3)


def commits(spec: str) -> int | None:
    """Return the number of commits, which SQLite counts in the index of the write-ahead log beside the
    file."""
    if not spec.startswith("sqlite:"):
        return None
    index = Path(f"{spec.removeprefix('sqlite:')}-shm").read_bytes()
    return int.from_bytes(index[8:12], sys.byteorder)


def measure_turns(directory: Path, specs: dict[str, str], rounds: int) -> dict[str, Any]:
    """Run every load on every store in every round, and the floor beside them."""
    turns: dict[str, Any] = {kind: {name: [] for name in LOADS} for kind in specs}
    floors: Figures = {"1": [], "16": []}
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(serving(spec)) for kind, spec in specs.items()}
        for number in range(rounds):
            report_progress(f"turns, round {number + 1} of {rounds}")
            for name, load in LOADS.items():
                # Measured beside each load, because the speed of a disk changes within a round.
                for rows, figures in floors.items():
                    figures.append(floor(directory, int(rows)))
                for kind, server in servers.items():
                    before = commits(specs[kind])
                    turns[kind][name].append(played := asyncio.run(play(server.url, load)))
                    after = commits(specs[kind])
                    if before is not None and after is not None and load.storing:
                        responses = load.storing * (load.turns + 1)
                        played["stored"]["per_commit"] = responses / (after - before)
    return {"floor_ms_per_commit": floors, "turns": turns}


def serving(spec: str, *flags: str) -> Any:
    return slipring(ENGINE, "--store", spec, "--log-level", "error", *flags)


# Chains: the cost of loading one.


async def grow(url: str, length: int) -> str:
    """Create a stored chain of ``length`` responses; return the id of the last."""
    latest: str | None = None
    async with client(url) as each:
        for _ in range(length):
            latest = (await each.turn(latest, store=True)).response_id
    assert latest is not None
    return latest


async def grow_all(url: str) -> dict[int, str]:
    """Create all chains concurrently, because the longest takes as long as all of them; and one for warming
    up."""
    tips = await asyncio.gather(*(grow(url, length) for length in (1, *LENGTHS)))
    return dict(zip((0, *LENGTHS), tips, strict=True))


async def continue_all(url: str, tips: dict[int, str], figures: dict[int, dict[str, Figures]]) -> None:
    """Continue each chain twice on connections that have not cached it, then on one that has."""
    for length in (0, *random.sample(LENGTHS, len(LENGTHS))):
        async with client(url, timing=True) as each:
            from_store = await each.turn(tips[length], store=False)
        async with client(url, timing=True) as each:
            from_process = await each.turn(tips[length], store=False)
            from_connection = await each.turn(from_process.response_id, store=False)
        if not length:
            continue
        kinds = {"store": from_store, "process": from_process, "connection": from_connection}
        for kind, seen in kinds.items():
            mine = figures[length].setdefault(kind, {"first_ms": [], "resolve_ms": []})
            mine["first_ms"].append(round(seen.first_ms, 3))
            mine["resolve_ms"].append(seen.stages["resolve"])


def measure_chains(specs: dict[str, str], rounds: int) -> dict[str, dict[int, dict[str, Figures]]]:
    figures: dict[str, Any] = {kind: {length: {} for length in LENGTHS} for kind in specs}
    with ExitStack() as stack:
        tips = {}
        for kind, spec in specs.items():
            report_progress(f"chains at {kind}")
            # The memory store's server has to keep running; it has no cache besides the rows.
            flags = ("--recent-bytes", "1") if kind == "memory" else ()
            with ExitStack() as own:
                server = (stack if kind == "memory" else own).enter_context(serving(spec, *flags))
                tips[kind] = server if kind == "memory" else None, asyncio.run(grow_all(server.url))
        for number in range(rounds):
            report_progress(f"chains, start {number + 1} of {rounds}")
            for kind, spec in specs.items():
                continue_once(spec, *tips[kind], figures[kind])
    for mine in figures.get("memory", {}).values():
        del mine["process"]  # it has no cache: this was the store again
    return figures


def continue_once(
    spec: str, server: Process | None, tips: dict[int, str], figures: dict[int, dict[str, Figures]]
) -> None:
    """Use the server that is running, or start one."""
    with ExitStack() as stack:
        url = (server or stack.enter_context(serving(spec))).url
        asyncio.run(continue_all(url, tips, figures))


# Token ids: what storing them saves.


def rendered_chain(renderer: TemplateRenderer) -> Iterator[ResponseState]:
    """Return turns of about 500 tokens, each rendered by delta, as by a token engine."""
    state: ResponseState | None = None
    items: tuple[Any, ...] = (item(type="message", role="user", content="Mend the failing test."),)
    for number in range(LENGTHS[-1]):
        turn, job = begun(items, state, f"resp_{number + 1}")
        position = renderer.render(job).context
        delivery.accept(turn, [Finished("stop", position.total, 0, 0, position=position)])
        state = endings.finish(turn, now=time.time())[1].state
        assert state is not None
        yield state
        items = exchange(number, TURN_CHARACTERS)


async def spent(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the wall time and the CPU time of this process, threads included."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = await work()
    wall_ms, cpu_ms = (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3
    return result, {"wall_ms": round(wall_ms, 3), "cpu_ms": round(cpu_ms, 3)}


async def next_turn(store: Store, renderer: TemplateRenderer, length: int) -> dict[str, Any]:
    """Read a chain and render a turn after it; return the time of each, and the ids."""

    async def load() -> ResponseState | None:
        return await store.responses.load("t", f"resp_{length}")

    async def render() -> Rendering:
        return renderer.render(job)

    state, load_took = await spent(load)
    assert state is not None
    assert state.depth == length
    _, job = begun(exchange(10**6, TURN_CHARACTERS), state, "resp_next")
    rendering, render_took = await spent(render)
    return {"load": load_took, "render": render_took, "ids": rendering.prompt.ids()}


async def with_and_without(spec: str, renderer: TemplateRenderer, rounds: int) -> dict[str, Any]:
    """Read the same chain from the same database with its ids and without, alternating.

    PostgreSQL plans queries by statistics that it collects now and then: measured once with statistics older
    than the chain's tenant, and once with new ones.
    """
    database = open_database(spec)
    stores = {  # Neither has a cache: every load reads from the database.
        "ids": Store(database, positions=RenderingCodec()),
        "items": Store(database),
    }
    await stores["ids"].start()
    is_planned = database.name == "postgresql"
    if is_planned:
        await execute(spec, "ALTER TABLE slipring_responses SET (autovacuum_enabled = off)", "ANALYZE")
    for state in rendered_chain(renderer):
        await stores["ids"].responses.save("t", state)
    figures = {}
    if is_planned:
        figures["postgresql, statistics older than the tenant"] = await read_all(stores, renderer, rounds)
        await execute(spec, "ANALYZE")
    figures[database.name] = await read_all(stores, renderer, rounds)
    await stores["ids"].close()
    return figures


async def read_all(stores: dict[str, Store], renderer: TemplateRenderer, rounds: int) -> dict[int, Any]:
    figures: dict[int, Any] = {length: {"ids": [], "items": []} for length in LENGTHS}
    for _ in range(rounds):
        for length in LENGTHS:
            made = {name: await next_turn(store, renderer, length) for name, store in stores.items()}
            ids = [each.pop("ids") for each in made.values()]
            assert ids[0] == ids[1], "the two renderings differ"
            for name, each in made.items():
                figures[length][name].append(each)
            figures[length]["tokens"] = len(ids[0])
    return figures


async def execute(url: str, *statements: str) -> None:
    import asyncpg  # optional

    connection = await asyncpg.connect(url)
    for sql in statements:
        await connection.execute(sql)
    await connection.close()


def measure_ids(directory: Path, specs: dict[str, str], rounds: int) -> dict[str, dict[int, Any]]:
    renderer = chatml_renderer(Tokenizer.from_gguf(packaged_metadata()))
    figures: dict[str, dict[int, Any]] = {}
    for kind, spec in specs.items():
        report_progress(f"token ids at {kind}")
        where = f"sqlite:{directory}/ids.db" if kind == "sqlite" else spec
        figures |= asyncio.run(with_and_without(where, renderer, rounds))
    return figures


# Output.


def report_progress(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)


def formatted(values: Sequence[float], digits: int = 2) -> str:
    each = spread(values)
    return f"{each['median']:.{digits}f} ({each['low']:.{digits}f} – {each['high']:.{digits}f})"


def show_turns(figures: dict[str, Any]) -> None:
    print("SQLite alone, synchronous=FULL, ms per commit, median (range)")
    for rows, times in figures["floor_ms_per_commit"].items():
        each = spread(times)["median"]
        print(f"  {rows:>2} rows   {formatted(times):28}   {int(rows) * 1e3 / each:7.0f} rows/s")
    print("turns, ms: from the last output event to response.completed, and the whole turn")
    print(f"  {'':37} {'gap':24} {'p95':>7}   {'turn':24} {'p95':>7}   turns/s")
    for kind, loads in figures["turns"].items():
        for name, played in loads.items():
            for group in played[0]:
                print(f"  {kind:10} {label(name, group):26} {turns_row([each[group] for each in played])}")
        show_ratios(kind, loads)
    for kind, loads in figures["turns"].items():
        for name in ("1 stored", "16 stored"):
            grouped = [each["stored"].get("per_commit") for each in loads[name]]
            if None not in grouped:
                print(f"  {kind:10} {name}: responses in one commit {formatted(grouped)}")


def label(name: str, group: str) -> str:
    return f"{name}: {'these' if group == 'stored' else 'others'}" if name.endswith("8 stored") else name


def turns_row(played: list[dict[str, float]]) -> str:
    columns = {name: [each[name] for each in played] for name in played[0]}
    return (
        f"{formatted(columns['gap_ms']):24} {statistics.median(columns['gap_p95_ms']):7.2f}  "
        f" {formatted(columns['turn_ms']):24} {statistics.median(columns['turn_p95_ms']):7.2f}  "
        f" {formatted(columns['per_s'], 0)}"
    )


def show_ratios(kind: str, loads: dict[str, Any]) -> None:
    pairs = {
        "1 client, stored against not": ("1 stored", "stored", "1 not stored"),
        "16 clients, stored against not": ("16 stored", "stored", "16 not stored"),
        "not stored, beside 8 that store against beside none": (
            "16 paced, 8 stored",
            "not stored",
            "16 paced, none stored",
        ),
    }
    for title, (name, group, base) in pairs.items():
        rounds = list(zip(loads[name], loads[base], strict=True))
        whole, tail = (
            [one[group][column] / other["not stored"][column] for one, other in rounds]
            for column in ("turn_ms", "turn_p95_ms")
        )
        print(f"  {kind:10} {title}: whole turn {formatted(whole)} ×, p95 {formatted(tail)} ×")


def show_chains(figures: dict[str, Any]) -> None:
    print("from the frame to response.created, ms, median (range); in brackets the server's lookup")
    titles = {
        "store": "not cached",
        "process": "cached by the process",
        "connection": "by the connection",
    }
    for kind, lengths in figures.items():
        for length, mine in lengths.items():
            cells = [
                f"{titles[name]} {formatted(each['first_ms'])} [{spread(each['resolve_ms'])['median']:.2f}]"
                for name, each in mine.items()
            ]
            print(f"  {kind:10} {length:5} responses   {'   '.join(cells)}")


def show_ids(figures: dict[str, Any]) -> None:
    print("read a chain and render the next turn, ms, median (range): with its token ids, and without")
    for kind, lengths in figures.items():
        for length, mine in lengths.items():
            print(f"  {kind:10} {length:5} responses, {mine['tokens']:7,} tokens")
            for unit in ("wall_ms", "cpu_ms"):
                print(f"    {unit[:-3]:4}  {ids_row(mine, unit)}")


def ids_row(mine: dict[str, Any], unit: str) -> str:
    parts, sums = [], {}
    for name, title in {"ids": "by delta", "items": "in full"}.items():
        load, render = ([each[step][unit] for each in mine[name]] for step in ("load", "render"))
        sums[name] = [sum(each) for each in zip(load, render, strict=True)]
        parts.append(f"read {formatted(load)} + {title} {formatted(render)}")
    ratios = [full / delta for full, delta in zip(sums["items"], sums["ids"], strict=True)]
    return f"{parts[0]}   against   {parts[1]}: {formatted(ratios, 1)} ×"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", default=None, help="directory for the databases; default: a temporary")
    parser.add_argument("--only", default="", help=f"stores whose names begin with this: {', '.join(KINDS)}")
    arguments = parser.parse_args()
    with places(arguments.dir, arguments.only) as (directory, specs):
        turns = measure_turns(directory, specs, arguments.rounds)
        show_turns(turns)
        chains = measure_chains(specs, arguments.rounds)
        show_chains(chains)
        ids = measure_ids(directory, specs, arguments.rounds)
        show_ids(ids)
    if not arguments.only:
        loads = {name: load._asdict() for name, load in LOADS.items()}
        keep(
            "store_cost", {"rounds": arguments.rounds, "loads": loads, **turns, "chains": chains, "ids": ids}
        )


if __name__ == "__main__":
    main()
