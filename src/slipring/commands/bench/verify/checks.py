"""Checks one answer: order of events, sums of deltas, and the call or text that the loop needs.

A server that loses history or drops deltas must not appear fast. Faults are returned as texts, in the order
in which they were found; nothing is raised.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from msgspec import Struct

from slipring.commands.bench.client.exchange import PAUSE, TERMINAL, TIMING, Event
from slipring.commands.bench.verify import digests
from slipring.commands.bench.verify.items import ItemChecker, streamed_text
from slipring.commands.bench.workloads.plan import Item, Need

CALLS = ("function_call", "custom_tool_call")


class Expectation(Struct, frozen=True, kw_only=True):
    """What a correct answer to one turn looks like."""

    needs: Need
    previous_response_id: str | None = None
    lane: str | None = None
    least_input_tokens: int = 0
    """Lower bound of the input tokens: the history only grows."""
    digest: str | None = None
    """Digest of the context; None if the endpoint does not report digests."""
    may_be_truncated: bool = False
    """Whether the answer may end at ``max_output_tokens``."""


def find_faults(events: list[Event], answer: list[Item], expected: Expectation) -> str | None:
    """Descriptions of all faults, joined by semicolons; None if the answer is correct.

    ``events`` are those of the whole response. In a rollout, ``answer`` holds only the items of the last
    turn.
    """
    faults = list(_faults(events, answer, expected))
    return "; ".join(dict.fromkeys(faults)) or None


def calls_of(answer: list[Item]) -> list[Item]:
    return [item for item in answer if item.get("type") in CALLS]


def failure_reason(response: dict[str, Any]) -> str:
    """Why a response failed or is incomplete."""
    error, details = response.get("error") or {}, response.get("incomplete_details") or {}
    return str(error.get("message") or details.get("reason") or "no reason given")


def _faults(events: list[Event], answer: list[Item], expected: Expectation) -> Iterator[str]:
    try:
        is_paused = bool(events) and events[-1]["type"] == PAUSE
        yield from _check_order(events, terminal_events=0 if is_paused else 1)
        yield from _check_lane(events, expected.lane)
        yield from ItemChecker().check(events)
        if is_paused:
            yield from _check_pause(events[-1], answer)
        if len({event["response"]["id"] for event in events if "response" in event}) > 1:
            yield "the response changes its id"
        for event in events:
            if event["type"] in TERMINAL:
                yield from _check_response(event["response"], expected)
        yield from _check_need(answer, expected.needs)
        yield from _check_digest(answer, expected.digest)
    except (KeyError, TypeError, AttributeError) as error:
        yield f"an event does not follow the API: {type(error).__name__} {error}"


def _check_order(events: list[Event], terminal_events: int) -> Iterator[str]:
    kinds = [event["type"] for event in events]
    if kinds[:1] != ["response.created"]:
        yield f"begins with {kinds[0] if kinds else 'nothing'} and not with response.created"
    if kinds.count("response.created") > 1:
        yield "response.created comes more than once"
    if "response.in_progress" not in kinds[:3]:
        yield "no response.in_progress at the beginning"
    if kinds.count("response.in_progress") > 1:
        yield "response.in_progress comes more than once"
    numbers = [event.get("sequence_number") for event in events]
    if None in numbers:
        yield "events without a sequence_number"
    for before, after in pairwise(number for number in numbers if number is not None):
        if after != before + 1:
            yield f"sequence_number {after} comes after {before}"
            break
    found = [place for place, kind in enumerate(kinds) if kind in TERMINAL]
    if len(found) != terminal_events:
        yield f"{len(found)} terminal events"
    elif found and (rest := [kind for kind in kinds[found[0] + 1 :] if kind != TIMING]):
        yield f"{rest[0]} comes after the terminal event"


def _check_pause(event: Event, answer: list[Item]) -> Iterator[str]:
    required = sorted(each["call_id"] for each in event["required_input"])
    if required != sorted(call["call_id"] for call in calls_of(answer)):
        yield "the response waits for other calls than it has made"


def _check_lane(events: list[Event], lane: str | None) -> Iterator[str]:
    for event in events:
        if event.get("stream_id") != lane:
            yield f"{event['type']} is on the lane {event.get('stream_id')!r} and not on {lane!r}"
            return


def _check_response(response: dict[str, Any], expected: Expectation) -> Iterator[str]:
    reason = failure_reason(response)
    is_truncated = expected.may_be_truncated and reason == "max_output_tokens"
    if response["status"] != "completed" and not is_truncated:
        yield f"the response is {response['status']}: {reason}"
    if response.get("previous_response_id") != expected.previous_response_id:
        yield f"previous_response_id is {response.get('previous_response_id')!r}"
    tokens = (response.get("usage") or {}).get("input_tokens")
    if tokens is not None and tokens < expected.least_input_tokens:
        yield f"history was lost: {tokens} input tokens, expected at least {expected.least_input_tokens}"


def _check_digest(answer: list[Item], expected: str | None) -> Iterator[str]:
    found = digests.find_digest(answer)
    if expected is not None and found is None:
        yield "the answer has no digest, although the endpoint reports digests"
    elif expected is not None and found != expected:
        yield f"the context was not what was sent: digest {found}, expected {expected}"


def _check_need(answer: list[Item], needs: Need) -> Iterator[str]:
    calls = calls_of(answer)
    if needs == "call" and not calls:
        yield "no call, though the loop needs one"
    if needs == "text" and calls:
        yield "a call, though the loop needs text"
    elif needs == "text" and not any(streamed_text(item) for item in answer if item["type"] == "message"):
        yield "no text, though the loop needs some"
