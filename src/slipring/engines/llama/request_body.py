"""Encodes the body of a request to llama-server's ``/completion``.

The ids of the context are spliced in as encoded bytes, one piece per earlier step.
"""

from typing import Any

from slipring.core.generation import Settings
from slipring.engines.tokens.sampling import Sampling
from slipring.prompts.rendering import Rendered
from slipring.protocol import wire


def completion_body(prompt: Rendered, settings: Settings, sampling: Sampling, **fields: Any) -> bytes:
    """Encode the body of a ``/completion`` request that continues ``prompt``."""
    body: dict[str, Any] = {
        "stream": True,
        "return_tokens": True,
        # llama-server then reports after each batch of a prefill, and notices clients that disconnected.
        "return_progress": True,
        **_sampling(settings, sampling),
        **fields,
    }
    return b'{"prompt":' + prompt.json() + b"," + wire.encode(body)[1:]


def _sampling(settings: Settings, sampling: Sampling) -> dict[str, Any]:
    asked = sampling.fields(settings, penalty_name="repeat_penalty", unlimited_top_k=0)
    if sampling.penalty_window is not None:
        asked["repeat_last_n"] = sampling.penalty_window
    if settings.seed is not None:
        asked["seed"] = settings.seed
    if settings.logprobs:
        asked["n_probs"] = max(settings.top_logprobs, 1)
    return asked
