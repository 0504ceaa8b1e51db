"""Chains over a socket, for the tests of engines that keep contexts in sessions."""

from typing import Any

from tests.engines.fakes.server import in_front_of
from tests.engines.fakes.tokens import FakeTokenServer, decoded
from tests.harness import Socket


async def turns(
    socket: Socket, *inputs: Any, after: str | None = None, **fields: Any
) -> list[dict[str, Any]]:
    """Run turns of a chain, each after the one before."""
    responses = []
    for said in inputs:
        asked = {"store": False, **fields, **({"previous_response_id": after} if after else {})}
        responses.append(await socket.response(input=said, **asked))
        after = responses[-1]["id"]
    return responses


async def whole_prompts(server: FakeTokenServer, *inputs: Any, scripts: Any = (), **fields: Any) -> list[str]:
    """The prompts of these turns in front of a server without sessions."""
    async with in_front_of(server) as (fake, running), running.connect() as socket:
        for script in scripts:
            fake.script(*script)
        await turns(socket, *inputs, **fields)
        return [decoded(prompt) for prompt in fake.prompts]
