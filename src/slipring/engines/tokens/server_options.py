"""The options of engines that send token ids to a server: ``vllm:URL[,name=value…]`` and ``sglang:…``."""

from dataclasses import dataclass
from typing import TypeVar

from slipring.engines.addresses_and_options import (
    dialect_option,
    option,
    read_address,
    read_pairs,
    thinking_option,
    variables_option,
)
from slipring.engines.remote.replica_affinity import REPLICA_HEADERS
from slipring.engines.remote.upstream import UpstreamOptions
from slipring.engines.scheduling.priorities_and_hints import hints_option


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenServerOptions(UpstreamOptions):
    """The options of one server, its model and its tokenizer."""

    tokenizer: str = option(
        "",
        "the model's `tokenizer.json`, a directory that holds it and `tokenizer_config.json`, or `ORG/REPO`"
        " of the hub",
    )
    dialect: str = dialect_option()
    thinking: str = thinking_option()
    variables: str = variables_option()
    model: str = option("", "the model's name at the server; empty: the first that it serves")
    context: int = option(0, "tokens of context; 0: as many as the server reports")
    images: str = option(
        "auto",
        "whether the model sees pictures: auto (the server is asked), on or off",
        choices=("auto", "on", "off"),
    )
    priorities: bool = option(
        False,
        "whether the server schedules by priority: turns of loops that run then go before the first turns of"
        " others, and both before warmups",
    )
    scheduling: bool = option(
        True, "whether turns wait while the server's KV cache cannot hold the contexts of all running loops"
    )
    kv_tokens: int = option(
        0, "tokens that the server's KV cache holds, that of each replica; 0: as many as the server reports"
    )
    replica_header: str = option(
        REPLICA_HEADERS, "headers of answers, separated by `;`, of which the first one names the replica"
    )
    structural_tags: bool = option(
        True, "whether the server may be sent structural tags; false: it does not enforce them with xgrammar"
    )
    sessions: str = option(
        "auto",
        "sessions, in which turns send new ids only: auto (if the server has them), on or off",
        choices=("auto", "on", "off"),
    )
    max_sessions: int = option(
        256, "sessions open at once; at most half of the requests that the server runs at once"
    )
    session_idle_s: float = option(600.0, "seconds after which an idle session is closed", least=1)


OptionsT = TypeVar("OptionsT", bound=TokenServerOptions)


def read_options(kind: str, options: type[OptionsT], text: str) -> OptionsT:
    """Parse what follows ``KIND:``. Raises ``StartupError`` with one line."""
    address, pairs = read_address(kind, text, "http://127.0.0.1:8000")
    url = address.url.removesuffix("/v1")
    return options(url=url, query=address.query, **read_pairs(kind, options, pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions(TokenServerOptions):
    """The options of a vLLM server."""

    report_ends: bool = option(
        False,
        "whether slipring reports the end of a chain to Dynamo, with a request for one token and a header",
    )
    hints: str = hints_option()
