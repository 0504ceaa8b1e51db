"""The options of the simulated engine: ``simulated:tokens_per_s=1000,ttft_ms=0,…``."""

from dataclasses import dataclass

from slipring.engines.options import option, read_pairs
from slipring.errors import StartupError


@dataclass(frozen=True, slots=True)
class Options:
    """How the simulated engine behaves. A rate of 0 is unlimited."""

    tokens_per_s: float = option(1000.0, "speed of the answer; 0: unlimited")
    ttft_ms: float = option(0.0, "time before the first token, on top of the prefill")
    prefill_tokens_per_s: float = option(
        0.0, "speed at which tokens are read that the prefix cache does not hold; 0: unlimited"
    )
    prefix_cache: bool = option(True, "whether contexts that were seen before need no prefill again")
    output_tokens: int = option(60, "length of an answer, and of the arguments of a call")
    tool_calls: int = option(3, "tool outputs in the context from which on it answers with text")
    parallel_calls: int = option(1, "calls made in one response, where the request allows several")
    digest: bool = option(False, "whether planned answers carry a digest of the context")
    vocabulary: str = option(
        "",
        "contexts and answers are real token ids: of `smollm2`, the packaged model, or of a `.gguf`, a"
        " `tokenizer.json` or a directory that holds it",
    )
    dialect: str = option(
        "", "how contexts are written: chatml, llama3 or template; empty: as the model's template asks"
    )
    context_tokens: int = option(262_144, "tokens of context, with a vocabulary", least=1)
    script: str = option("", "a file of scripted answers, played instead of planned ones")


def read_options(text: str) -> Options:
    """Read what stands behind ``simulated:``."""
    options = Options(**read_pairs("simulated", Options, text.split(",")))
    if options.script and options.vocabulary:
        raise StartupError("--engine simulated: scripted answers are not tokenized: script or vocabulary")
    return options
