"""The workloads by name: a coding agent, a long one, a short chat, and loops after a long history."""

from collections.abc import Callable

from slipring.commands.bench.results import Workload
from slipring.commands.bench.workloads.plan import Item, Plan, PlanStep, message
from slipring.commands.bench.workloads.prose import INSTRUCTIONS, Prose
from slipring.commands.bench.workloads.tools import CODING_TOOLS

OUTPUT_BYTES = 3_500
CODING_CALLS = 25
LONG_TURNS = 100
SHORT_TURNS = 6
DEEP_TURNS = 5
DEPTHS = (20_000, 75_000, 150_000)
_BYTES_PER_TOKEN = 2.6
_HEAD_TOKENS = 2_600
"""Bytes per token of the texts here, and tokens of instructions and tools, with a small model's
vocabulary."""


def coding(calls: int = CODING_CALLS) -> Plan:
    return _agent(
        "coding",
        "A coding agent",
        f"{calls} tool {'call' if calls == 1 else 'calls'} and an answer; 4 kB of instructions, 10 tools,"
        " outputs of 3.5 kB",
        calls,
    )


def long() -> Plan:
    return _agent(
        "long",
        "A long agent",
        f"{LONG_TURNS} turns: {LONG_TURNS - 1} tool calls and an answer; otherwise as coding",
        LONG_TURNS - 1,
    )


def short() -> Plan:
    prose = Prose("short")
    return Plan(
        workload=Workload(
            name="short",
            title="A short chat",
            about=f"{SHORT_TURNS} turns of a few words, without tools",
            turns=SHORT_TURNS,
        ),
        instructions="Answer in one sentence.",
        steps=[PlanStep(messages=[message(prose.sentence(4))]) for _ in range(SHORT_TURNS)],
    )


def deep(tokens: int) -> Plan:
    """A loop that starts with about this many tokens of history."""
    prose = Prose(f"deep {tokens}")
    rounds = max(1, round((tokens - _HEAD_TOKENS) * _BYTES_PER_TOKEN / OUTPUT_BYTES))
    history: list[Item] = [message(prose.task())]
    for number in range(rounds):
        history += _past_call(prose, f"call_past_{number}")
    history += [message("Good so far.", "assistant"), message(prose.task())]
    label = f"{tokens // 1000}k"
    return Plan(
        workload=Workload(
            name=f"deep-{label}",
            title=f"Deep in a history of {label} tokens",
            about=f"{DEEP_TURNS} turns with tools after about {tokens:,} tokens of history; the turn that"
            " brings the history is not counted",
            turns=DEEP_TURNS,
        ),
        instructions=INSTRUCTIONS,
        tools=CODING_TOOLS,
        steps=[PlanStep(messages=history, needs="call"), *_outputs(prose, DEEP_TURNS)],
        uncounted=1,
        outputs_before=rounds,
    )


WORKLOADS: dict[str, Callable[[], Plan]] = {"coding": coding, "long": long, "short": short}


def _agent(name: str, title: str, about: str, calls: int) -> Plan:
    prose = Prose(name)
    return Plan(
        workload=Workload(name=name, title=title, about=about, turns=calls + 1),
        instructions=INSTRUCTIONS,
        tools=CODING_TOOLS,
        steps=[
            PlanStep(messages=[message(prose.task())], needs="call" if calls else "text"),
            *_outputs(prose, calls),
        ],
    )


def _outputs(prose: Prose, count: int) -> list[PlanStep]:
    """Turns that send one tool output each; the last one needs text, the others a call."""
    return [
        PlanStep(outputs=[prose.tool_output(OUTPUT_BYTES)], needs="call" if number < count - 1 else "text")
        for number in range(count)
    ]


def _past_call(prose: Prose, call_id: str) -> list[Item]:
    call = {"type": "function_call", "call_id": call_id, "name": CODING_TOOLS[0]["name"]}
    return [
        {**call, "arguments": f'{{"path":"{prose.sentence(2)}"}}'},
        {"type": "function_call_output", "call_id": call_id, "output": prose.tool_output(OUTPUT_BYTES)},
    ]
