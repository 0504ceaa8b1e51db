"""Measures the cost of rendering and tokenizing a turn: the whole context, or only the new items.

A coding agent's history (tool calls and outputs of 3.5 kB) grows from 2k to 150k tokens of the embedded
model's real vocabulary. At each size the same new tool output is rendered and tokenized in two ways: in full,
from all items, as by a server that stores only items; and by delta, appended to the parent's tokens. Finally
the JSON array of all ids for the engine is created: by joining encoded pieces, and by encoding all ids.

All is measured with both libraries that encode text: tokenizers, and fastokens, which a server uses once it
has loaded it.

    python benchmarks/render_cost.py
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from common import keep, spread, verdict
from packaged import chatml_renderer, packaged_metadata

from slipring.core.betas import NO_BETAS
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.instructions_and_tools import KnownHeads
from slipring.core.chain.resent_history import KnownContexts, KnownItems
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import NoCache
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import NO_POLICY, Check, Policy
from slipring.core.generation import Capabilities, Finished, Job, Model
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session import preparation
from slipring.core.session.session_state import SessionState
from slipring.core.turn import delivery, endings
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Asked, Bound, Turn
from slipring.prompts.rendering import Rendered
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol.items.items import Item, read_item
from slipring.protocol.requests import CreateRequest
from slipring.server.access.content_encryption import KeyedSeal, new_key

BUDGET = 1.5
AIMS = {"delta": 20, "full": 15}
"""How much faster encoding by fastokens should make a turn than encoding by tokenizers."""
AIMED_SIZE = 75_000
SIZES = (2_000, 8_000, 20_000, 75_000, 150_000)
MODEL = Model(name="smollm2", owner="benchmarks", capabilities=Capabilities())
SOURCE = "\n".join(
    f"def handler_{n}(request: Request, retries: int = {n}) -> Response:  # line {n * 7}" for n in range(60)
)


class Served:
    """One model, without safety checks."""

    checks: Mapping[str, Check] = {}

    def find(self, name: str | None) -> Model:
        return MODEL

    def policy_of(self, model: str) -> Policy:
        return NO_POLICY


def item(**fields: Any) -> Item:
    return read_item(json.dumps(fields).encode(), "input[0]")


def exchange(number: int, size: int = 3_500) -> tuple[Item, Item]:
    """Return a tool call and its output."""
    call_id = f"call_{number}"
    arguments = json.dumps({"path": f"src/module_{number}.py"})
    start = number * 31 % 1000
    text = (SOURCE[start:] + SOURCE)[:size]
    return (
        item(type="function_call", call_id=call_id, name="read_file", arguments=arguments),
        item(type="function_call_output", call_id=call_id, output=text),
    )


def begun(
    items: tuple[Item, ...], parent: ResponseState | None, response_id: str = "resp"
) -> tuple[Turn, Job]:
    request = CreateRequest(instructions="You mend code.", store=False)
    stages = Stages(time.perf_counter)
    ports = Ports(
        mint=lambda prefix: response_id,
        clock=time.perf_counter,
        seal=KeyedSeal([new_key()]),
        requests=Ledger(0, 0),
        known=KnownContexts(0, 0),
        heads=KnownHeads(0, 0),
        items=KnownItems(0, 0),
        verdicts=KnownVerdicts(0),
    )
    asked = Asked(request=request, tenant="t", lane=None, size_bytes=0, parent=parent)
    turn = Turn(asked, ports, stages)
    shared = SessionState("t", Served(), Limits(), ports, NoCache(), 0.0, NO_BETAS, Served())
    turn.bound = Bound(parent, items)
    turn.prepared, turn.planned = preparation.prepare(turn, shared)
    assert turn.planned.job is not None  # it has no lists of tools to wait for
    return turn, turn.planned.job


def chain(renderer: TemplateRenderer, tokens: int) -> ResponseState:
    """Return a chain of turns, each rendered by delta, with at least ``tokens`` tokens."""
    state: ResponseState | None = None
    items: tuple[Item, ...] = (item(type="message", role="user", content="Mend the failing test."),)
    number = 0
    while True:
        turn, job = begun(items, state)
        position = renderer.render(job).context
        delivery.accept(turn, [Finished("stop", position.total, 0, 0, position=position)])
        state = endings.finish(turn, now=0.0)[1].state
        assert state is not None
        if position.total >= tokens:
            return state
        items = exchange(number)
        number += 1


def without_positions(state: ResponseState) -> ResponseState:
    """Return the same chain without token ids, as on a server that stores only items."""
    state.position = None
    return state


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def measure(renderer: TemplateRenderer, tokens: int, repeats: int) -> dict[str, list[float]]:
    state = chain(renderer, tokens)
    position = state.position
    assert isinstance(position, Rendered)
    _, new = begun(exchange(10**6), state)
    by_delta = renderer.render(new)
    figures = {
        "delta": milliseconds(lambda: renderer.render(new), repeats * 5),
        "splice": milliseconds(by_delta.prompt.json, repeats * 5),
        "encode": milliseconds(lambda: json.dumps(by_delta.prompt.ids()), repeats),
    }
    _, lost = begun(new.input, without_positions(state))
    in_full = renderer.render(lost)
    assert in_full.prompt.ids() == by_delta.prompt.ids(), "the two renderings differ"
    return {"full": milliseconds(lambda: renderer.render(lost), repeats), **figures}


def renderers() -> dict[str, TemplateRenderer]:
    """Renderers of the packaged model, by the library that encodes text."""
    metadata = packaged_metadata()
    slow, fast = Tokenizer.from_gguf(metadata), Tokenizer.from_gguf(metadata)
    fast.accelerate()
    return {"tokenizers": chatml_renderer(slow), "fastokens": chatml_renderer(fast)}


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: spread(values)["median"] for name, values in times.items()}


def row(tokens: int, library: str, times: dict[str, list[float]]) -> str:
    each = {name: spread(values) for name, values in times.items()}
    full, delta = each["full"], each["delta"]
    return (
        f"{tokens:9,}  {library:10}  {full['median']:8.2f} ({full['low']:.2f} – {full['high']:.2f})"
        f"  {delta['median']:7.3f} ({delta['low']:.3f} – {delta['high']:.3f})"
        f"  {full['median'] / delta['median']:6.0f} ×"
        f"  {each['encode']['median']:11.2f}  {each['splice']['median']:8.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    times: dict[str, dict[int, dict[str, list[float]]]] = {}
    faster: dict[int, dict[str, float]] = {}
    writers = renderers()
    print("milliseconds to render and tokenize one turn, median (range)")
    print(
        "  history  library                   in full                by delta    ratio  ids encoded   spliced"
    )
    for tokens in SIZES:
        for library, renderer in writers.items():
            print(f"  {tokens:,} tokens …", end="\r", file=sys.stderr, flush=True)
            figures = measure(renderer, tokens, arguments.repeats)
            times.setdefault(library, {})[tokens] = figures
            print(row(tokens, library, figures))
        slow, fast = (medians(times[library][tokens]) for library in ("tokenizers", "fastokens"))
        faster[tokens] = {way: slow[way] / fast[way] for way in ("full", "delta")}
        print(
            f"           fastokens is faster by {faster[tokens]['full']:.1f} × in full,"
            f" {faster[tokens]['delta']:.1f} × by delta"
        )
    new = times["fastokens"]
    growth = medians(new[SIZES[-1]])["delta"] / medians(new[SIZES[0]])["delta"]
    print(f"by delta, {SIZES[-1]:,} against {SIZES[0]:,} tokens: {verdict(growth, BUDGET)}")
    aims = min(ways["delta"] for ways in faster.values()), faster[AIMED_SIZE]["full"]
    print(
        f"aims: by delta {aims[0]:.1f} × of {AIMS['delta']} ×,"
        f" in full at {AIMED_SIZE:,} tokens {aims[1]:.1f} × of {AIMS['full']} ×"
    )
    keep("render_cost", {"budget": BUDGET, "ms": new, "growth": growth, "faster": faster})


if __name__ == "__main__":
    main()
