"""The options of the llama engine: ``llama[:MODEL][,name=value…]``.

MODEL is the path of a GGUF file, the address of a llama-server, or nothing: then it is the model that comes
with the package.
"""

import os
from dataclasses import dataclass

from slipring.engines.options import option, read_pairs
from slipring.errors import StartupError


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """Which model, and what it may use."""

    model: str = ""
    context: int = option(8192, "tokens of context, for each slot", least=1)
    slots: int = option(2, "contexts kept in the engine at once, and answers made at once", least=1)
    threads: int = option(0, "threads; 0: as many as there are cores")
    gpu_layers: int = option(0, "layers given to a GPU")
    chunk: int = option(
        256, "tokens that are prefilled at a time: a cancel waits for one such chunk", least=1
    )
    max_waiting: int = option(
        256, "jobs that may wait for a slot, tenants in turn; more are refused with 429"
    )
    saved_mib: int = option(1024, "memory for the KV of chains that have no slot; 0: it is not saved")
    dialect: str = option(
        "", "how contexts are written: chatml, llama3 or template; empty: as the model's template asks"
    )
    tokenizer: str = option("", "a `tokenizer.json` to use for the model of a llama-server elsewhere")
    key_env: str = option("", "the variable that holds the API key of a llama-server elsewhere")

    @property
    def is_external(self) -> bool:
        """Whether the model is named by the address of a server."""
        return self.model.startswith(("http://", "https://"))

    def key(self) -> str:
        """The API key of a server elsewhere, from its variable."""
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "")
        if not key:
            raise StartupError(f"--engine llama: the variable {self.key_env} (key_env) is empty")
        return key

    @property
    def thread_count(self) -> int:
        return self.threads or os.cpu_count() or 1


def read_options(text: str) -> LlamaOptions:
    """Read what stands behind ``llama:``; what cannot be used is named in one line."""
    model, *pairs = text.split(",")
    if "=" in model and not model.startswith(("/", ".", "http://", "https://")):
        model, pairs = "", [model, *pairs]
    if model.startswith(("http://", "https://")):
        model = model.rstrip("/").removesuffix("/v1")
    return LlamaOptions(model=model, **read_pairs("llama", LlamaOptions, pairs))
