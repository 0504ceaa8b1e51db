"""The options of the chat engine: ``chat:URL[,name=value…]``.

URL is the base address of a Chat Completions server, with its version: ``http://127.0.0.1:11434/v1``. A query
is kept and goes with every request.
"""

from dataclasses import dataclass

from slipring.engines.addresses_and_options import option, read_address, read_pairs
from slipring.engines.remote.upstream import UpstreamOptions
from slipring.engines.scheduling.priorities_and_hints import hints_option


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(UpstreamOptions):
    """The options of one Chat Completions server."""

    model: str = option(
        "", "models to serve, separated by `;`, the default one first; empty: all that the server lists"
    )
    images: bool = option(False, "whether the models accept images")
    image_urls: bool = option(
        False,
        "whether the server may fetch images from any URL that a client names; they go to it as they are",
    )
    logprobs: bool = option(False, "whether the server supports logprobs")
    max_tokens_field: str = option(
        "max_tokens",
        "the field that limits an answer's tokens: max_tokens or max_completion_tokens",
        choices=("max_tokens", "max_completion_tokens"),
    )
    stream_usage: bool = option(True, "whether to request token counts (`stream_options`)")
    send_reasoning: bool = option(
        False, "whether to send earlier reasoning back, as `reasoning_content` of its message"
    )
    think_tags: str = option(
        "false",
        "whether `<think>…</think>` in an answer's text is reasoning: false, true, or opened, for models"
        " whose prompt ends with `<think>`, so that answers begin with the thought itself",
        choices=("false", "true", "opened"),
    )
    send_cache_key: bool = option(
        False, "whether to send `prompt_cache_key`: the affinity key, never the client's own"
    )
    send_cache_salt: bool = option(
        False, "whether to send `cache_salt`, which separates tenants in vLLM's prefix cache"
    )
    hints: str = hints_option()
    warmup: bool = option(
        False, "whether a warmup sends the context, with a limit of one token, which is dropped"
    )


def read_options(text: str) -> ChatOptions:
    """Parse what follows ``chat:``. Raises ``StartupError`` with one line."""
    address, pairs = read_address("chat", text, "http://127.0.0.1:11434/v1", path="/v1")
    return ChatOptions(**address._asdict(), **read_pairs("chat", ChatOptions, pairs))
