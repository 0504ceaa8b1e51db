"""Names the vLLM server in all its answers: behind a router, slipring knows which replica has answered.

Runs in the API process of a vLLM server, as part of slipring's plugin. The name is another one after each
start, when the cache is empty.
"""

import secrets
from typing import Any

HEADER = b"x-slipring-replica"


class Replica:
    """The server's name and the size of its KV cache, once that is known."""

    def __init__(self) -> None:
        self.value = b""
        """Of the header; empty: none is added."""

    def describe(self, config: Any) -> None:
        """Read a ``VllmConfig``. Servers with several API processes or engines have no header: a name would
        have to mean one cache."""
        parallel, cache = config.parallel_config, config.cache_config
        if parallel.data_parallel_size > 1 or getattr(parallel, "_api_process_count", 1) > 1:
            return
        tokens = (cache.num_gpu_blocks or 0) * cache.block_size
        self.value = f"{secrets.token_hex(4)};kv_tokens={tokens}".encode()


class ReplicaHeader:
    """An ASGI middleware that adds the header."""

    def __init__(self, app: Any, replica: Replica) -> None:
        self._app = app
        self._replica = replica

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        value = self._replica.value
        if not value or scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, value)]}
            await send(message)

        await self._app(scope, receive, send_named)
