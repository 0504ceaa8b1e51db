"""The options of the chat engine: ``chat:URL[,name=value…]``.

URL is the base address of a Chat Completions server, with its version: ``http://127.0.0.1:11434/v1``.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from slipring.engines.options import option, read_pairs
from slipring.engines.remote.upstream import UpstreamOptions
from slipring.errors import StartupError

_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(UpstreamOptions):
    """Which server, which of its models, and what they can do."""

    model: str = option(
        "", "models to serve, separated by `;`, the default one first; empty: all that the server lists"
    )
    images: bool = option(False, "whether the models see images")
    logprobs: bool = option(False, "whether the server gives logprobs")
    max_tokens_field: str = option(
        "max_tokens", "the field that bounds an answer: max_tokens or max_completion_tokens"
    )
    stream_usage: bool = option(True, "whether the server is asked for token counts (`stream_options`)")
    send_reasoning: bool = option(
        False, "whether earlier reasoning is sent back, as `reasoning_content` of its message"
    )
    think_tags: bool = option(False, "whether `<think>…</think>` in an answer's text is reasoning")
    send_cache_key: bool = option(
        False, "whether `prompt_cache_key` is sent: the affinity key, never a client's own"
    )
    send_cache_salt: bool = option(
        False, "whether `cache_salt` is sent, which keeps tenants apart in the prefix cache of vLLM"
    )
    warmup: bool = option(False, "whether a warmup asks the server, for one token that is thrown away")


def read_options(text: str) -> Options:
    """Read what stands behind ``chat:``; what cannot be used is named in one line."""
    url, *pairs = text.split(",")
    if not url.startswith(("http://", "https://")):
        raise StartupError(
            f"--engine chat: needs the address of a server, as in chat:http://127.0.0.1:11434/v1, not '{url}'"
        )
    url = url.rstrip("/")
    if not urlsplit(url).path:
        url += "/v1"
    options = Options(url=url, **read_pairs("chat", Options, pairs))
    if options.max_tokens_field not in _LIMIT_FIELDS:
        known = " or ".join(_LIMIT_FIELDS)
        raise StartupError(
            f"--engine chat: option 'max_tokens_field' must be {known}, not '{options.max_tokens_field}'"
        )
    return options
