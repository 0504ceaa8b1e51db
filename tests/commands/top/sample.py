"""Messages of a live stream: a small busy server, and parts to make others from."""

from typing import Any

import msgspec

from slipring.observation.live_messages import (
    Connection,
    Engine,
    Greeting,
    Memory,
    Parked,
    SavedContext,
    Slot,
    TenantMemory,
    Totals,
    Turn,
    Update,
)
from slipring.protocol.turn_report import Stage, StageName, TokenCounts, TurnReport

NOW = 1_800_000_000.0
MIB = 2**20


def greeting(workers: int = 1, **changed: Any) -> Greeting:
    plain = Greeting("0.1.0", NOW - 11_520, NOW, 0.5, "http://127.0.0.1:8000/v1", workers, Totals())
    return msgspec.structs.replace(plain, **changed)


def stages(*durations: tuple[StageName, float]) -> list[Stage]:
    """Stages one after the other."""
    found: list[Stage] = []
    start = 0.0
    for name, duration in durations:
        found.append(Stage(name, start, duration))
        start += duration
    return found


def ended(seconds_ago: float, connection: int = 0, *, now: float = NOW, **changed: Any) -> Turn:
    """A completed turn of 850 ms."""
    report = TurnReport(
        status="completed",
        request_bytes=1480,
        stages=stages(("decode", 0.1), ("render", 4.9), ("prefill", 45.0), ("generate", 800.0)),
        total_ms=850.0,
        response_id="resp_1",
        model="qwen3-8b",
        tokens=TokenCounts(rendered=214, input=18_250, cached=18_036, output=62),
        history_bytes=71_000,
    )
    turn_fields = {name: changed.pop(name) for name in ("lane", "tenant", "transport") if name in changed}
    turn = Turn(
        started_at=now - seconds_ago - 0.85,
        report=msgspec.structs.replace(report, **changed),
        transport="websocket" if connection else "http",
        tenant="team-a",
        connection=connection,
    )
    return msgspec.structs.replace(turn, **turn_fields)


def running(seconds: float, phase: str, *done: tuple[StageName, float], **changed: Any) -> Turn:
    """A turn whose request arrived so many seconds ago, in a phase, after these stages."""
    report = TurnReport(status=phase, request_bytes=1480, stages=stages(*done), total_ms=seconds * 1000)
    turn = Turn(started_at=NOW - seconds, report=report, transport="websocket", tenant="team-a")
    return msgspec.structs.replace(turn, **changed)


def connection(number: int, **changed: Any) -> Connection:
    plain = Connection(
        number=number,
        tenant="team-a",
        opened_at=NOW - 300,
        cache=Memory(3 * MIB, 64 * MIB),
        responses=12,
        lanes=1,
        turns_ended=12,
        unsent_bytes=0,
        running=[],
    )
    return msgspec.structs.replace(plain, **changed)


def engine(**changed: Any) -> Engine:
    plain = Engine(
        name="llama",
        models=["qwen3-8b"],
        trouble=None,
        running=2,
        waiting=0,
        breaker="none",
        slots=[
            Slot(0, "busy", 18_312, "team-a", "resp_68f2a91c07"),
            Slot(1, "idle", 4_020, "team-b", "resp_68f2a90b11"),
        ],
        saved=[SavedContext("team-b", 2_048, 24 * MIB, "resp_68f2a8ffe0")],
        saved_memory=Memory(24 * MIB, 512 * MIB),
    )
    return msgspec.structs.replace(plain, **changed)


def totals(turns: int = 1240, **changed: Any) -> Totals:
    plain = Totals(
        turns={"completed": turns, "failed": 2},
        tokens={
            "rendered": turns * 180,
            "input": turns * 9_000,
            "cached": turns * 8_700,
            "output": turns * 60,
            "reasoning": 0,
        },
        request_bytes=turns * 1_500,
        history_bytes=turns * 41_000,
        fallbacks={},
    )
    return msgspec.structs.replace(plain, **changed)


def update(process: int = 0, **changed: Any) -> Update:
    """A complete update of a process without clients."""
    plain = Update(
        process=process,
        pid=4000 + process,
        now=NOW,
        is_complete=True,
        memory={"states": Memory(6 * MIB, 512 * MIB), "parked": Memory(MIB, 128 * MIB)},
        tenants=[TenantMemory("team-a", 5 * MIB, 256 * MIB)],
        resident_bytes=88 * MIB,
        cpu_s=12.0,
        loop_lag_ms=1.4,
        sockets=0,
        in_flight=0,
        waiting=0,
        is_draining=False,
        needs_key=False,
        engines=[engine()],
        parked=[],
        parked_sessions=0,
        totals=totals(),
        connections=[],
        closed=[],
        http=[],
        turns=[],
        turns_missed=0,
    )
    return msgspec.structs.replace(plain, **changed)


def busy_update(process: int = 0, **changed: Any) -> Update:
    """A complete update of a process with every kind of thing."""
    plain = update(
        process,
        sockets=4,
        in_flight=4,
        waiting=1,
        connections=[
            connection(
                1,
                lanes=2,
                running=[
                    running(1.9, "running", ("render", 5), ("engine_queue", 1), ("prefill", 44), lane="main"),
                    running(0.4, "waiting", lane="tests"),
                ],
                recent=[ended(31.0, 1), ended(8.0, 1, lane="main", response_id="resp_68f2a91c07")],
            ),
            connection(
                2,
                tenant="team-b",
                running=[
                    running(
                        14.0, "paused", ("render", 5), ("prefill", 95), ("generate", 900), tenant="team-b"
                    )
                ],
            ),
            connection(
                3,
                unsent_bytes=4_096,
                recent=[
                    ended(3.2, 3, status="failed", error_code="context_length_exceeded", tokens=msgspec.UNSET)
                ],
            ),
            connection(4, turns_ended=0, responses=0, cache=Memory(0, 64 * MIB), opened_at=NOW - 2),
        ],
        http=[running(0.2, "preparing", ("decode", 0.1), transport="sse", tenant="team-c")],
        turns=[
            ended(
                12.0,
                tenant="team-c",
                transport="sse",
                marks=("fork", "compaction"),
                fallback="the template drops thoughts",
            )
        ],
        parked=[Parked("team-a", 9, 400_000, 41.5)],
        parked_sessions=1,
    )
    return msgspec.structs.replace(plain, **changed)
