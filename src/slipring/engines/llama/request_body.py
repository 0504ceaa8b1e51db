"""What the llama engine asks of llama-server: a job's settings as the body of ``/completion``.

The ids of the context are spliced in as ready bytes, one piece per earlier step.
"""

from typing import Any

from slipring.core.generation import Settings
from slipring.engines.tokens.token_answer import sampling
from slipring.prompts.rendering import Rendered
from slipring.protocol import wire


def completion_body(prompt: Rendered, settings: Settings, **fields: Any) -> bytes:
    """The body of a request that goes on after ``prompt``."""
    body: dict[str, Any] = {
        "stream": True,
        "return_tokens": True,
        # With it the engine tells after each batch of a prefill how far it is, and notices who has left.
        "return_progress": True,
        **_sampling(settings),
        **fields,
    }
    return b'{"prompt":' + prompt.json() + b"," + wire.encode(body)[1:]


def _sampling(settings: Settings) -> dict[str, Any]:
    asked = {**sampling(settings), "top_k": 0}
    if settings.seed is not None:
        asked["seed"] = settings.seed
    if settings.logprobs:
        asked["n_probs"] = max(settings.top_logprobs, 1)
    return asked
