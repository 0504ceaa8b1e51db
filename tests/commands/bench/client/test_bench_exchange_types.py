"""Answers with missing or mistyped fields are reported, and end only their loop."""

import json
from collections.abc import Callable

import pytest

from slipring.commands.argument_parser import CommandFailed
from tests.commands.bench.faulty import Faulty, Json, running
from tests.commands.bench.stage import faults, measured

Change = Callable[[Json], None]


class Malformed(Faulty):
    """Changes every event after the probe."""

    def __init__(self, change: Change, mode: str) -> None:
        super().__init__()
        self._change = change
        self._probes = 3 if mode == "rollout" else 2

    def events(self, frame: Json) -> list[Json]:
        events = json.loads(json.dumps(super().events(frame)))
        if len(self.requests) > self._probes:
            for event in events:
                self._change(event)
        return events


def without_call_id(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        event["item"].pop("call_id", None)


def without_role(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        event["item"].pop("role", None)


def without_name(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        event["item"].pop("name", None)


def without_type(event: Json) -> None:
    if event["type"] == "response.output_item.done":
        del event["item"]["type"]


def with_words_for_tokens(event: Json) -> None:
    if event["type"] == "response.completed":
        event["response"]["usage"] = {"input_tokens": "many"}


def with_a_list_for_usage(event: Json) -> None:
    if event["type"] == "response.completed":
        event["response"]["usage"] = []


def without_response_id(event: Json) -> None:
    if event["type"] == "response.completed":
        del event["response"]["id"]


def without_response(event: Json) -> None:
    if event["type"] == "response.completed":
        del event["response"]


def without_open_id(event: Json) -> None:
    if event["type"] == "response.done":
        del event["response_id"]


CHANGES = {
    without_call_id: ("http-full", "websocket", "rollout"),
    without_role: ("http-full", "websocket"),
    without_name: ("http-full", "http-chained"),
    without_type: ("http-full", "websocket"),
    with_words_for_tokens: ("http-full", "websocket"),
    with_a_list_for_usage: ("http-full", "websocket"),
    without_response_id: ("http-chained", "websocket"),
    without_response: ("http-full", "websocket"),
    without_open_id: ("rollout",),
}


@pytest.mark.parametrize(
    ("change", "mode"), [(change, mode) for change, modes in CHANGES.items() for mode in modes]
)
async def test_malformed_answers_are_errors_of_their_loop(change: Change, mode: str) -> None:
    async with running(Malformed(change, mode)) as url:
        record = await measured(url, modes=(mode,))
    (loop,) = record.loops
    assert loop.error is not None
    assert "the answer does not follow the API: " in loop.error


async def test_an_endpoint_with_malformed_answers_cannot_be_measured() -> None:
    faulty = Malformed(with_words_for_tokens, "")
    faulty._probes = 0
    async with running(faulty) as url:
        with pytest.raises(
            CommandFailed, match=r"cannot measure .*: websocket: the answer does not follow the API: "
        ):
            await measured(url, modes=("websocket",))


async def test_events_with_an_invalid_stream_id_reach_all_lanes() -> None:
    def change(event: Json) -> None:
        event["stream_id"] = ["lane-0"]

    async with running(Malformed(change, "")) as url:
        record = await measured(url, modes=("websocket-lanes",), lanes=1)
    assert "on the lane ['lane-0']" in faults(record)[0]


async def test_a_failed_response_is_an_error() -> None:
    def change(event: Json) -> None:
        if event["type"] == "response.completed":
            event["type"] = "response.failed"
            event["response"] |= {"status": "failed", "error": {"message": "The engine has stopped."}}

    async with running(Malformed(change, "")) as url:
        record = await measured(url, modes=("websocket",))
    assert record.loops[0].error == "turn 1: the response failed: The engine has stopped."
    assert faults(record) == []
