"""Padding of delta events."""

import json
from typing import Any

import pytest

from slipring.protocol import wire
from slipring.protocol.events import PADDED, Event, OutputTextDelta, RefusalDone
from slipring.protocol.requests import CreateRequest, StreamOptions
from slipring.server.transports.obfuscation import STEP, padded_send
from tests.harness import WEATHER, serve


def delta(text: str) -> Event:
    return OutputTextDelta(
        sequence_number=3, output_index=0, item_id="m", content_index=0, delta=text, logprobs=[]
    )


def ask(value: bool | None) -> CreateRequest:
    return CreateRequest(stream_options=StreamOptions(include_obfuscation=value))


@pytest.mark.parametrize("request_", [CreateRequest(), ask(None), ask(False)])
def test_only_requests_that_ask_for_padding_get_it(request_: CreateRequest) -> None:
    assert not request_.is_padded
    assert ask(True).is_padded


@pytest.mark.parametrize("text", ["", "a", "é\n", "x" * 31, "x" * 100])
def test_a_delta_is_padded_and_otherwise_unchanged(text: str) -> None:
    sent_events: list[Event] = []
    padded_send(sent_events.extend)([delta(text)])
    sent = json.loads(wire.encode(sent_events[0]))
    padding = sent.pop("obfuscation")
    assert sent == json.loads(wire.encode(delta(text)))
    assert (len(wire.encode(text)) + len(padding)) % STEP == 0


def test_other_events_are_not_padded() -> None:
    done = RefusalDone(sequence_number=1, output_index=0, item_id="m", content_index=0, refusal="no")
    sent_events: list[Event] = []
    padded_send(sent_events.extend)([done])
    assert sent_events == [done]


def test_every_kind_of_delta_can_be_padded() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    deltas = {kind for kind in below(Event) if "delta" in kind.__struct_fields__}  # type: ignore[attr-defined]
    assert deltas == PADDED.keys() | set(PADDED.values())


@pytest.mark.parametrize("tools", [[], [WEATHER]])
async def test_padding_over_a_socket(tools: list[Any]) -> None:
    create = {"input": "hello", "tools": tools, "store": False}
    engine = "simulated:output_tokens=4,tool_calls=1,tokens_per_s=0"
    async with serve(engine) as server, server.connect() as socket:
        plain = await socket.turn(**create)
        padded = await socket.turn(**create, stream_options={"include_obfuscation": True})
    assert not any("obfuscation" in event for event in plain)
    assert [event["type"] for event in plain] == [event["type"] for event in padded]
    for event in padded:
        assert ("obfuscation" in event) == event["type"].endswith(".delta")
