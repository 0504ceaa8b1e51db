"""The options of the simulated engine: ``simulated:tokens_per_s=1000,ttft_ms=0,…``."""

from dataclasses import dataclass

from slipring.base.errors import StartupError
from slipring.engines.addresses_and_options import (
    dialect_option,
    option,
    read_pairs,
    thinking_option,
    variables_option,
)


@dataclass(frozen=True, slots=True)
class SimulatedOptions:
    """How the simulated engine behaves. A rate of 0 is unlimited."""

    tokens_per_s: float = option(1000.0, "decoding speed of an answer; 0: unlimited")
    ttft_ms: float = option(0.0, "delay of the first token, added to the prefill")
    prefill_tokens_per_s: float = option(
        0.0, "prefill speed of tokens that are not in the prefix cache; 0: unlimited"
    )
    prefix_cache: bool = option(True, "whether the prefill skips prefixes that were read before")
    output_tokens: int = option(60, "length of an answer, and of the arguments of a call")
    tool_calls: int = option(3, "tool outputs in the context after which it answers with text")
    parallel_calls: int = option(1, "calls in one response, if the request allows several")
    digest: bool = option(False, "whether planned answers carry a digest of the context")
    vocabulary: str = option(
        "",
        "use real token ids: of `smollm2`, the packaged model, or of a `.gguf`, a"
        " `tokenizer.json` or a directory that contains one",
    )
    dialect: str = dialect_option()
    thinking: str = thinking_option()
    variables: str = variables_option()
    context_tokens: int = option(262_144, "context length in tokens, with a vocabulary", least=1)
    max_jobs: int = option(0, "jobs that run at once; 0: any number")
    max_waiting: int = option(
        256, "jobs that may wait for their turn, tenants in turn; more are refused with 429"
    )
    script: str = option("", "a file of scripted answers, played instead of planned ones")


def read_options(text: str) -> SimulatedOptions:
    """Parse the options after ``simulated:``. Raises ``StartupError``."""
    options = SimulatedOptions(**read_pairs("simulated", SimulatedOptions, text.split(",")))
    if options.script and options.vocabulary:
        raise StartupError(
            "--engine simulated: script and vocabulary exclude each other: scripted answers are not tokenized"
        )
    return options
