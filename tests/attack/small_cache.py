"""A vLLM server with a small KV cache, as a process: the fake of the tests. It prints its address.

    python -m tests.attack.small_cache

It calls the tool that the last message of a user names (``call read``), and answers anything else with words.
"""

import asyncio
import re
from typing import Any

from aiohttp import web

from tests.engines.fakes.server import Call, Say, Step, Stop
from tests.engines.fakes.tokens import decoded, tokenizer_directory
from tests.engines.fakes.vllm import FakeVllm

KV_TOKENS = 16_000
_ASKED = re.compile(r"call (\w+)[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$")
_WORDS = tuple(f"word{number} " for number in range(16))


class SmallCache(FakeVllm):
    metrics = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{KV_TOKENS // 16}"}} 1.0\n'

    async def _play(
        self, request: web.Request, answer: web.StreamResponse, body: dict[str, Any], script: tuple[Step, ...]
    ) -> None:
        del self.prompts[:], self.bodies[:], self.requests[:], self.headers[:]
        asked = _ASKED.search(decoded(body["prompt"][-60:]))
        script = (Call(asked.group(1), "{}") if asked else Say(_WORDS), Stop())
        await super()._play(request, answer, body, script)


async def main() -> None:
    fake = SmallCache()
    await fake.start()
    print(f"{fake.url} {tokenizer_directory()}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
