"""A Chat Completions server whose model sees and takes no files, as a process. It prints its address.

    python -m tests.attack.seeing

It calls the first tool of a request whose last message is a user's, and answers anything else with words.
"""

import asyncio
import logging

from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.server import Call, Say, Step, Stop

_WORDS = tuple(f"word{number} " for number in range(4))


class Seeing(FakeChatServer):
    def next_script(self) -> tuple[Step, ...]:
        asked = self.requests[-1]
        for kept in (self.bodies, self.requests, self.headers, self.queries):
            del kept[:-1]
        if asked.get("tools") and asked["messages"][-1]["role"] == "user":
            return (Call(asked["tools"][0]["function"]["name"], "{}"), Stop("tool_calls"))
        return (Say(_WORDS), Stop(input_tokens=8 * len(asked["messages"]), output_tokens=len(_WORDS)))


async def main() -> None:
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # attackers leave amid answers
    fake = Seeing()
    await fake.start()
    print(fake.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
