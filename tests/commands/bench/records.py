"""Invented records for tests of the reports, the same in every run."""

import random
from collections.abc import Callable, Sequence

from slipring.commands.bench.results import (
    BenchRecord,
    BenchSettings,
    Checked,
    Endpoint,
    LoopResult,
    Machine,
    ModeDescription,
    TurnResult,
    Workload,
)

MODES = (
    ModeDescription(
        name="http-full", title="HTTP, full history", about="every turn sends the whole conversation"
    ),
    ModeDescription(
        name="http-chained", title="HTTP, chained", about="every turn names the stored response before it"
    ),
    ModeDescription(name="websocket", title="WebSocket", about="one socket, every turn sends what is new"),
    ModeDescription(
        name="websocket-lanes", title="WebSocket, lanes", about="four loops side by side on one socket"
    ),
    ModeDescription(name="rollout", title="Rollout", about="the whole loop is one response on one socket"),
)
CODING = Workload(name="coding", title="A coding agent", about="25 tool calls and an answer", turns=26)
LONG = Workload(name="long", title="A long agent", about="99 tool calls and an answer", turns=100)
SHORT = Workload(name="short", title="A short chat", about="6 turns of a few words, without tools", turns=6)
_TOKENS_PER_TURN = {"coding": 1200, "long": 1150, "short": 30}
_OUTPUT_TOKENS = {"coding": 40, "long": 40, "short": 20}


def record(
    workloads: Sequence[Workload] = (CODING, LONG, SHORT),
    modes: Sequence[ModeDescription] = MODES,
    repeats: int = 5,
    *,
    seed: int = 1,
    has_stages: bool = True,
    has_cpu: bool = True,
) -> BenchRecord:
    """Five modes in three workloads by default."""
    dice = random.Random(seed)
    made = BenchRecord(
        when="2026-11-15T12:00:00Z",
        versions={"slipring": "0.1.0", "Python": "3.11.7", "aiohttp": "3.14.5"},
        machine=Machine(cpu="Intel(R) Xeon(R) Processor", cores=2, memory_gib=7.8, system="Linux 6.1"),
        endpoint=Endpoint(model="simulated", engine="simulated", tokens_per_s=100.0),
        settings=BenchSettings(repeats=repeats),
        workloads=list(workloads),
        modes=list(modes),
    )
    for workload in workloads:
        for repeat in range(repeats):
            weather = dice.uniform(0.97, 1.06)
            for mode in modes:
                for lane in range(4 if mode.name == "websocket-lanes" else 1):
                    made.loops.append(
                        _loop(dice, workload, mode, repeat, lane, weather, stages=has_stages, cpu=has_cpu)
                    )
    return made


def one_mode() -> BenchRecord:
    return record([CODING], MODES[2:3])


def one_repeat() -> BenchRecord:
    return record([CODING, SHORT], MODES[:3], repeats=1)


def one_turn() -> BenchRecord:
    return record([Workload(name="single", title="One call", about="a question", turns=1)], MODES[:3])


def bare() -> BenchRecord:
    """A record of a server without stage times, token counts and CPU times."""
    made = record([CODING], MODES[:3], repeats=3, has_stages=False, has_cpu=False)
    made.endpoint = Endpoint(model="gpt-6.1-mini", url="https://models.example/v1")
    for loop in made.loops:
        for turn in loop.turns:
            turn.input_tokens = turn.cached_tokens = turn.output_tokens = 0
            turn.created_ms = turn.first_token_ms = None
    return made


def wrong() -> BenchRecord:
    """One mode has faulty answers, another a broken connection, and one was skipped."""
    made = record([CODING, SHORT], MODES[:4], repeats=3)
    made.skipped = {"rollout": "the endpoint refused the header OpenAI-Beta: slipring_rollout=v1"}
    for loop in made.loops:
        if loop.mode == "http-chained" and loop.workload == "coding":
            for turn in loop.turns[3:12:4]:
                turn.wrong = "the answer is a text of 3 words, where a call of read_file was to come"
        if loop.mode == "websocket" and loop.workload == "short" and loop.repeat == 1:
            loop.turns = loop.turns[:2]
            loop.error = "the socket was closed with 1011 after 2 turns"
    return made


def all_wrong() -> BenchRecord:
    made = record([SHORT], MODES[:2], repeats=2)
    for loop in made.loops:
        loop.error = "HTTP 500: the engine is not there"
        loop.turns = []
    return made


def hostile() -> BenchRecord:
    """Every text of the record contains markup."""
    evil = "\"'><script>alert(1)</script>&<b x='\x00"
    made = wrong()
    made.endpoint = Endpoint(model=evil, url=f"http://127.0.0.1/{evil}", engine=evil, tokens_per_s=9.5)
    made.versions = {evil: evil}
    made.machine = Machine(cpu=evil, cores=1, memory_gib=0.5, system=evil)
    made.skipped = {evil: evil}
    made.workloads = [
        Workload(name=f"{each.name}{evil}", title=evil, about=evil, turns=each.turns)
        for each in made.workloads
    ]
    made.modes = [
        ModeDescription(name=f"{each.name}{evil}", title=f"{each.name}{evil}", about=evil)
        for each in made.modes
    ]
    for loop in made.loops:
        loop.workload += evil
        loop.mode += evil
        for turn in loop.turns:
            turn.stages_ms = {f"{name}{evil}": ms for name, ms in turn.stages_ms.items()}
            turn.wrong = turn.wrong and evil
    return made


def loops(mode: str, walls: list[float]) -> list[LoopResult]:
    """One loop of one turn for each wall time."""
    return [
        LoopResult(
            workload="short",
            mode=mode,
            repeat=repeat,
            wall_ms=wall,
            turns=[TurnResult(number=1, total_ms=wall)],
        )
        for repeat, wall in enumerate(walls)
    ]


def compared(full: list[float], socket: list[float]) -> BenchRecord:
    """A record of ``http-full`` and ``websocket`` with these wall times."""
    made = record([SHORT], [MODES[0], MODES[2]], repeats=0)
    made.loops = loops("http-full", full) + loops("websocket", socket)
    return made


def checked_by(checked: Checked | None) -> BenchRecord:
    """A record of two modes whose history was verified in this way."""
    made = compared([100] * 5, [50] * 5)
    made.modes[0] = ModeDescription(
        name="http-full", title="HTTP, full history", about="", sends_history=True
    )
    for loop in made.loops:
        loop.history_checked = checked
    return made


RECORDS: dict[str, Callable[[], BenchRecord]] = {
    "all": record,
    "one_mode": one_mode,
    "one_repeat": one_repeat,
    "one_turn": one_turn,
    "bare": bare,
    "wrong": wrong,
    "all_wrong": all_wrong,
    "hostile": hostile,
}


def _loop(
    dice: random.Random,
    workload: Workload,
    mode: ModeDescription,
    repeat: int,
    lane: int,
    weather: float,
    *,
    stages: bool,
    cpu: bool,
) -> LoopResult:
    turns = [
        _turn(dice, workload, mode, number + 1, weather, stages=stages) for number in range(workload.turns)
    ]
    spent_ms = sum(turn.total_ms for turn in turns)
    cpu_ms = spent_ms * 0.02 * dice.uniform(0.9, 1.1) if cpu else None
    return LoopResult(
        workload=workload.name,
        mode=mode.name,
        repeat=repeat,
        lane=lane,
        wall_ms=spent_ms + 2.0,
        cpu_ms=cpu_ms,
        turns=turns,
    )


def _turn(
    dice: random.Random,
    workload: Workload,
    mode: ModeDescription,
    number: int,
    weather: float,
    *,
    stages: bool,
) -> TurnResult:
    each = _TOKENS_PER_TURN.get(workload.name, 200)
    output = _OUTPUT_TOKENS.get(workload.name, 40)
    context, new = each * number + 900, each if number > 1 else each + 900
    is_full, is_http = mode.name == "http-full", mode.name.startswith("http")
    sent_tokens = context if is_full else new
    spent = {
        "decode": 0.02 + sent_tokens * 0.00004,
        "queue": 0.01,
        "resolve": 0.9 if mode.name == "http-chained" else 0.02,
        "validate": sent_tokens * 0.00006,
        "render": 0.2 + sent_tokens * 0.0016,
        "engine_queue": 0.3,
        "prefill": 4 + new * 0.012 + (context * 0.002 if is_http else 0),
        "generate": output * 10.0,
        "store": 0.0 if mode.name == "rollout" else 1.4,
        "terminal": 0.05,
    }
    spent = {name: ms * weather * dice.uniform(0.95, 1.05) for name, ms in spent.items()}
    inside_ms = sum(spent.values())
    way_ms = (1.6 if is_http else 0.3) * dice.uniform(0.7, 1.6) + sent_tokens * 0.0006
    before_ms = sum(spent[name] for name in ("decode", "queue", "resolve", "validate", "render"))
    return TurnResult(
        number=number,
        created_ms=before_ms + way_ms / 2,
        first_token_ms=before_ms + spent["engine_queue"] + spent["prefill"] + way_ms,
        total_ms=inside_ms + way_ms,
        sent_bytes=int(sent_tokens * 3.4) + (900 if is_http else 120),
        received_bytes=output * 190 + 2200,
        input_tokens=context,
        cached_tokens=0 if number == 1 else context - new,
        output_tokens=output,
        stages_ms=spent if stages else {},
    )
