"""The options of the llama engine: ``llama[:MODEL][,name=value…]``.

MODEL is the path of a GGUF file or the URL of a running llama-server; without it, the packaged model is used.
"""

import os
from dataclasses import dataclass

from slipring.base.errors import StartupError
from slipring.engines.addresses_and_options import (
    dialect_option,
    option,
    read_pairs,
    thinking_option,
    variables_option,
)
from slipring.engines.remote.server_key import key_of_variable

OWN_TEXT = "ngram-simple"
"""Drafts from the context of the request alone."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """The model and its resources."""

    model: str = ""
    context: int = option(8192, "tokens of context per slot", least=1)
    slots: int = option(2, "contexts kept in the engine, and answers generated, at the same time", least=1)
    threads: int = option(0, "threads; 0: one per core")
    gpu_layers: int = option(0, "layers to offload to a GPU")
    chunk: int = option(
        256, "tokens prefilled per batch: a cancellation waits for the current batch", least=1
    )
    max_waiting: int = option(
        256, "jobs that may wait for a slot, tenants in turn; more are refused with 429"
    )
    spec: str = option(
        "",
        "tokens are drafted from earlier text: ngram-simple, ngram-map-k, ngram-map-k4v or ngram-mod",
        choices=("", OWN_TEXT, "ngram-map-k", "ngram-map-k4v", "ngram-mod"),
    )
    saved_mib: int = option(1024, "MiB for the saved KV of chains that have no slot; 0: nothing is saved")
    mmproj: str = option(
        "",
        "the projector (a GGUF file) of a model that sees pictures; empty: the one beside the model's file,"
        " if there is one; none: no projector",
    )
    dialect: str = dialect_option()
    thinking: str = thinking_option()
    variables: str = variables_option()
    tokenizer: str = option("", "a `tokenizer.json` for the model of an external llama-server")
    key_env: str = option("", "the environment variable that holds the API key of an external llama-server")

    @property
    def is_external(self) -> bool:
        """Whether ``model`` is the URL of a llama-server that slipring did not start."""
        return self.model.startswith(("http://", "https://"))

    def key(self) -> str:
        """The API key of an external server. Raises ``StartupError`` if its variable holds none."""
        return key_of_variable("llama", self.key_env) if self.key_env else ""

    @property
    def serves_one_tenant(self) -> bool:
        """Whether drafts are made of what earlier requests left behind. How fast an answer comes would then
        tell a tenant what others wrote."""
        return self.spec not in ("", OWN_TEXT)

    @property
    def thread_count(self) -> int:
        return self.threads or os.cpu_count() or 1


def read_options(text: str) -> LlamaOptions:
    """Parse the text after ``llama:``. Raises ``StartupError`` for unknown options and invalid values."""
    model, *pairs = text.split(",")
    if "=" in model and not model.startswith(("/", ".", "http://", "https://")):
        model, pairs = "", [model, *pairs]
    if model.startswith(("http://", "https://")):
        model = model.rstrip("/").removesuffix("/v1")
    options = LlamaOptions(model=model, **read_pairs("llama", LlamaOptions, pairs))
    for name in ("mmproj", "spec"):
        if getattr(options, name) and options.is_external:
            raise StartupError(f"--engine llama: option '{name}' is for the embedded engine only")
    return options
