"""Whether an answer is right: the order of its events, what they add up to, and what the loop needed.

A server that loses history, drops deltas or mixes up events must be found out, not be fast. What is wrong is
given in words, in the order in which it was found; nothing is raised.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from msgspec import Struct

from slipring.bench import digests
from slipring.bench.exchange import PAUSE, TERMINAL, TIMING, Event
from slipring.bench.items import Items, said
from slipring.bench.workloads.plan import Item, Need

CALLS = ("function_call", "custom_tool_call")


class Expectation(Struct, frozen=True, kw_only=True):
    """What an answer must be."""

    needs: Need
    previous_response_id: str | None = None
    lane: str | None = None
    least_input_tokens: int = 0
    """As many as were read and said before, or a little less: the history only grows."""
    digest: str | None = None
    """Of the context; None where the endpoint does not tell it."""
    may_be_cut: bool = False
    """Whether it may end at ``max_output_tokens``."""


def complaint(events: list[Event], answer: list[Item], expected: Expectation) -> str | None:
    """All that is wrong with an answer, or None. ``events``: of its response, from the first one on, even
    where the answer is but its latest part."""
    wrongs = list(_wrongs(events, answer, expected))
    return "; ".join(dict.fromkeys(wrongs)) or None


def calls_of(answer: list[Item]) -> list[Item]:
    return [item for item in answer if item.get("type") in CALLS]


def _wrongs(events: list[Event], answer: list[Item], expected: Expectation) -> Iterator[str]:
    try:
        is_paused = bool(events) and events[-1]["type"] == PAUSE
        yield from _order(events, ends=0 if is_paused else 1)
        yield from _lane(events, expected.lane)
        yield from Items().check(events)
        if is_paused:
            yield from _pause(events[-1], answer)
        if len({event["response"]["id"] for event in events if "response" in event}) > 1:
            yield "the response changes its id"
        for event in events:
            if event["type"] in TERMINAL:
                yield from _response(event["response"], expected)
        yield from _need(answer, expected.needs)
        yield from _digest(answer, expected.digest)
    except (KeyError, TypeError, AttributeError) as error:
        yield f"an event is not as the API has it: {type(error).__name__} {error}"


def _order(events: list[Event], ends: int) -> Iterator[str]:
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
    if len(found) != ends:
        yield f"{len(found)} terminal events"
    elif found and (rest := [kind for kind in kinds[found[0] + 1 :] if kind != TIMING]):
        yield f"{rest[0]} comes after the terminal event"


def _pause(event: Event, answer: list[Item]) -> Iterator[str]:
    owed = sorted(each["call_id"] for each in event["required_input"])
    if owed != sorted(call["call_id"] for call in calls_of(answer)):
        yield "the response waits for other calls than it has made"


def _lane(events: list[Event], lane: str | None) -> Iterator[str]:
    for event in events:
        if event.get("stream_id") != lane:
            yield f"{event['type']} is on the lane {event.get('stream_id')!r} and not on {lane!r}"
            return


def _response(response: dict[str, Any], expected: Expectation) -> Iterator[str]:
    is_cut = expected.may_be_cut and why(response) == "max_output_tokens"
    if response["status"] != "completed" and not is_cut:
        yield f"the response is {response['status']}: {why(response)}"
    if response.get("previous_response_id") != expected.previous_response_id:
        yield f"previous_response_id is {response.get('previous_response_id')!r}"
    tokens = (response.get("usage") or {}).get("input_tokens")
    if tokens is not None and tokens < expected.least_input_tokens:
        yield f"history was lost: {tokens} input tokens, where about {expected.least_input_tokens} were due"


def _digest(answer: list[Item], expected: str | None) -> Iterator[str]:
    found = digests.found_in(answer)
    if expected is not None and found is None:
        yield "the answer does not say what was read, though the endpoint can"
    elif expected is not None and found != expected:
        yield f"the context was not what was sent: digest {found}, expected {expected}"


def _need(answer: list[Item], needs: Need) -> Iterator[str]:
    made = calls_of(answer)
    if needs == "call" and not made:
        yield "no call, though the loop needs one"
    if needs == "text" and made:
        yield "a call, though the loop needs text"
    elif needs == "text" and not any(said(item) for item in answer if item["type"] == "message"):
        yield "no text, though the loop needs some"


def why(response: dict[str, Any]) -> str:
    error, details = response.get("error") or {}, response.get("incomplete_details") or {}
    return str(error.get("message") or details.get("reason") or "no reason given")
