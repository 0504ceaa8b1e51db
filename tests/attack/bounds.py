"""Request fields at their limit, which must be accepted, and beyond it, which must be refused by name."""

import asyncio
import json
from collections.abc import Callable

from tests.attack.compiling import custom_tool, with_grammars, with_parameters, with_schema
from tests.attack.sockets import Json
from tests.attack.stage import Registry, Stage

attack = Registry("bounds", quick=True)
_ITEM = {"role": "user", "content": "a"}


def _create(**fields: object) -> Json:
    return {"input": "go", "store": False, "max_output_tokens": 4, **fields}


async def _around(stage: Stage, bound: int, make: Callable[[int], Json | bytes], param: str) -> None:
    """Require that a request of this size is accepted, and one that is larger by one is refused."""
    served, refused = await asyncio.gather(stage.post(make(bound)), stage.post(make(bound + 1)))
    body = served and served.body[:300]
    stage.check(served is not None and served.status == 200, f"{param} at its bound {bound}: {body!r}")
    stage.refused(refused, (400,), param=param)


@attack()
async def plain_fields(stage: Stage) -> None:
    """Metadata, identifiers, names and item counts are accepted at their limits and refused beyond them."""
    await _around(stage, 16, lambda n: _create(metadata={f"k{i}": "v" for i in range(n)}), "metadata")
    await _around(stage, 64, lambda n: _create(metadata={"k" * n: "v"}), "metadata")
    await _around(stage, 512, lambda n: _create(metadata={"k": "v" * n}), "metadata")
    await _around(stage, 128, lambda n: _create(safety_identifier="s" * n), "safety_identifier")


@attack()
async def items(stage: Stage) -> None:
    """As many items as a request may have, 20,000, are served; one more is refused."""
    await _around(stage, 20_000, lambda n: _create(input=[_ITEM] * n), "input")


@attack()
async def stream_ids(stage: Stage) -> None:
    """A lane name of 256 characters is accepted; one of 257, or with another character, is refused."""
    socket = await stage.websocket()
    event = await stage.turn(socket, **_create(stream_id="l" * 256))
    stage.check(event and event["type"] == "response.incomplete", f"256 characters: {str(event)[:200]}")
    for name in ("l" * 257, "", "a b", "é", "\u0000", ["l"], {"a": 1}):
        event = await stage.turn(socket, **_create(stream_id=name))
        stage.refused(event, (400,), code="invalid_stream_id", param="stream_id")
    socket.close()


@attack()
async def grammar_bytes(stage: Stage) -> None:
    """A grammar of `max_grammar_bytes` is compiled; one of a byte more is refused."""
    most = int(stage.limit("max_grammar_bytes"))
    await _around(stage, most, lambda n: with_grammars(custom_tool(_characters(n))), "tools")


@attack()
async def grammar_count(stage: Stage) -> None:
    """`max_grammars` grammars are compiled; one more is refused."""
    most = int(stage.limit("max_grammars"))

    def make(count: int) -> Json:
        return with_grammars(*(custom_tool("[ab]", name=f"tool_{number}") for number in range(count)))

    await _around(stage, most, make, "tools")


@attack()
async def schema_bytes(stage: Stage) -> None:
    """Schemas of `max_schema_bytes`, as a format and as parameters, are accepted; a byte more is refused."""
    most = int(stage.limit("max_schema_bytes"))
    await _around(stage, most, lambda n: with_schema(_schema(n)), "text")
    await _around(stage, most, lambda n: _with_parameters(_schema(n)), "tools")


def _characters(length: int) -> str:
    """Return a regex of this many bytes that is easy to compile: one character set, repeated."""
    return "[" + "a" * (length - 2) + "]"


def _schema(length: int) -> str:
    """Return a schema of this many bytes, most of them a description."""
    bare = '{"type":"object","properties":{},"additionalProperties":false,"description":""}'
    return bare[:-2] + "d" * (length - len(bare)) + '"}'


def _with_parameters(schema: str) -> bytes:
    body = json.dumps(with_parameters({"instead": 1}))
    return body.replace('{"instead": 1}', schema).encode()
