"""Which engine a server of the bench's own runs, for a given workload."""

from slipring.bench.workloads.plan import Plan

_OUTPUT_TOKENS = 60


def default_engine(tokens_per_s: float) -> str:
    return f"simulated:tokens_per_s={tokens_per_s:g},output_tokens={_OUTPUT_TOKENS}"


def is_simulated(engine: str) -> bool:
    return engine.partition(":")[0] == "simulated"


def engine_for(engine: str, plan: Plan) -> str:
    """The engine, told how often to call in this workload where it has to be told."""
    kind, _, rest = engine.partition(":")
    if not is_simulated(engine) or "tool_calls=" in rest:
        return engine
    options = [*([rest] if rest else []), f"tool_calls={plan.outputs_before + plan.calls}"]
    return f"{kind}:{','.join(options)}"
