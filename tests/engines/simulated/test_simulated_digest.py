"""``digest=true``: answers carry a digest of the whole context, however the client sent it."""

import hashlib
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import WEATHER, Running, Socket, serve

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
VOCABULARIES = ("", "vocabulary=smollm2")
HEAD = {"instructions": "Be brief.", "tools": [WEATHER]}
ASK = {
    "type": "message",
    "role": "user",
    "content": [
        {"type": "input_text", "text": "What is the weather "},
        {"type": "input_text", "text": "in Rome?"},
    ],
}


def engine_of(vocabulary: str) -> str:
    return f"simulated:tokens_per_s=0,output_tokens=30,tool_calls=2,digest=true,{vocabulary}"


@pytest.fixture(params=VOCABULARIES, ids=["estimated", "tokenized"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    async with serve(engine_of(request.param)) as server:
        yield server


def digest_of(items: Iterable[Json], instructions: str = "Be brief.") -> str:
    """The digest of a context, computed as a client would."""
    entries = [("system", instructions)] if instructions else []
    for item in items:
        if item["type"] == "message":
            content = item["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            entries.append((item["role"], text))
        elif item["type"] == "function_call":
            entries.append(("call", item["name"] + item["arguments"]))
        elif item["type"] == "function_call_output":
            entries.append(("output", item["output"]))
    state = b""
    for kind, text in entries:
        state = hashlib.sha256(state + kind.encode() + b"\0" + text.encode() + b"\0").digest()
    return state.hex()[:16]


def carried(response: Json) -> str:
    (item,) = response["output"]
    text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
    if item["type"] == "message":
        assert text.startswith("digest=")
    found = re.findall(r"digest=([0-9a-f]{16})\b", text)
    assert len(found) == 1, text
    return str(found[0])


def outputs_for(response: Json, text: str) -> list[Json]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": text} for call in calls]


async def chain(socket: Socket, turns: int = 3, **fields: Any) -> tuple[list[Json], Json]:
    """Run a chain and check every digest; return its history with the last answer, and the last response."""
    history: list[Json] = []
    new: list[Json] = [ASK]
    previous: Json = {}
    for number in range(turns):
        history += new
        response = await socket.response(input=new, **previous, **HEAD, **fields)
        assert carried(response) == digest_of(history)
        history += response["output"]
        previous = {"previous_response_id": response["id"]}
        new = outputs_for(response, f"sunny {number}")
    return history, response


async def test_the_digest_covers_a_whole_chain(server: Running) -> None:
    async with server.connect() as socket:
        history, response = await chain(socket)
        assert response["output"][0]["type"] == "message"
        more = {"type": "message", "role": "user", "content": "And in Oslo?"}
        last = await socket.response(input=[more], previous_response_id=response["id"], **HEAD)
        assert carried(last) == digest_of([*history, more])


async def test_the_digest_of_a_fork_covers_its_own_history(server: Running) -> None:
    async with server.connect() as socket:
        history, response = await chain(socket)
        for city in ("Oslo", "Bern"):
            more = {"type": "message", "role": "user", "content": f"And in {city}?"}
            fork = await socket.response(
                input=[more], previous_response_id=response["id"], stream_id=city, **HEAD
            )
            assert carried(fork) == digest_of([*history, more])


async def test_a_full_history_has_the_digest_of_its_chain(server: Running) -> None:
    async with server.connect() as socket:
        history, response = await chain(socket)
        again = await socket.response(input=history[:-1], store=False, **HEAD)
        assert carried(again) == carried(response)
        lost = await socket.response(input=[history[0], *history[3:-1]], store=False, **HEAD)
        assert carried(lost) != carried(response)


async def test_the_digest_covers_the_instructions(server: Running) -> None:
    async with server.connect() as socket:
        history, response = await chain(socket)
        more = {"type": "message", "role": "user", "content": "And in Oslo?"}
        asked = {"input": [more], "previous_response_id": response["id"], "tools": [WEATHER]}
        for instructions in ("Be long.", ""):
            head = {"instructions": instructions} if instructions else {}
            other = await socket.response(**asked, **head)
            assert carried(other) == digest_of([*history, more], instructions)


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["estimated", "tokenized"])
async def test_the_digest_covers_a_chain_from_the_store(vocabulary: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    async with serve(engine_of(vocabulary), store=store) as server, server.connect() as socket:
        history, response = await chain(socket)
    async with serve(engine_of(vocabulary), store=store) as server, server.connect() as socket:
        more = {"type": "message", "role": "user", "content": "And in Oslo?"}
        last = await socket.response(input=[more], previous_response_id=response["id"], **HEAD)
        assert carried(last) == digest_of([*history, more])


async def test_a_server_without_token_engines_ignores_stored_positions(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    history: list[Json] = []
    stored: dict[str, bool] = {}
    for number, vocabulary in enumerate(("vocabulary=smollm2", "", "vocabulary=smollm2")):
        async with serve(engine_of(vocabulary), store=store) as server, server.connect() as socket:
            history.append({"type": "message", "role": "user", "content": f"Turn {number}"})
            previous = [*stored][-1] if stored else None
            response = await socket.response(
                input=history[-1:], previous_response_id=previous, tool_choice="none", **HEAD
            )
            assert carried(response) == digest_of(history)
            stored[response["id"]] = bool(vocabulary)
            rows = await server.service.store._database.read(
                "SELECT id, position IS NOT NULL FROM slipring_responses"
            )
            assert {row[0]: bool(row[1]) for row in rows} == stored
        history += response["output"]


async def test_without_the_option_answers_carry_no_digest() -> None:
    async with serve("simulated:tokens_per_s=0") as server, server.connect() as socket:
        assert "digest" not in str((await socket.response(input=[ASK], **HEAD))["output"])
