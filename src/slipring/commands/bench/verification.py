"""Verifies answers: the order of their events, the sums of their deltas, the call or text that the loop
needs, and that the server has read the whole history, by token counts and by the digest of a context in its
answer.

A server that loses history or drops deltas must not appear fast. A text arrives as deltas and once as a
whole, content parts are added and done around it, the item is repeated when it is done, and the terminal
event repeats all items. All of these must agree and come in order. Faults are returned as texts, in the order
in which they were found; nothing is raised.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

from msgspec import Struct

from slipring.commands.bench.client.exchange import PAUSE, TERMINAL, TIMING, Event
from slipring.commands.bench.results import Checked, LoopResult, TurnResult
from slipring.commands.bench.workloads.plan import Item, Need, text_of

CALLS = ("function_call", "custom_tool_call")
_Key = tuple[int, str, int]
"""Identifies a streamed text or a content part: output index, event name or list name, index in the item."""
_TEXTS = {
    "response.output_text": ("text", "content"),
    "response.refusal": ("refusal", "content"),
    "response.function_call_arguments": ("arguments", ""),
    "response.custom_tool_call_input": ("input", ""),
    "response.reasoning_text": ("text", "content"),
    "response.reasoning_summary_text": ("text", "summary"),
}
"""Streamed texts: the field of the whole text, and the item's list that holds its part, if any."""
_PARTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
"""Content parts: the item's list that holds them."""
REFERENCE = "http-full"
"""The mode whose requests contain the whole history, so its token counts are the expected ones."""
_BYTES_PER_TOKEN = 12
"""More than any vocabulary averages per token on text without repetition."""
_OUTPUT_SHARE = 0.75
"""Share of the output tokens that surely count as input later: calls may be rendered differently."""
_SLACK_TOKENS = 16
_SLACK_SHARE = 0.03
_RUNS = re.compile(r"(.)\1+", re.DOTALL)
_MARK = re.compile(r"digest=([0-9a-f]{16})")
_DIGEST = re.compile(r"\b[0-9a-f]{16}\b")


# --- One answer ------------------------------------------------------------------------------------


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
    found = find_digest(answer)
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


class ItemChecker:
    """Follows all items of one response through its events."""

    def __init__(self) -> None:
        self._added: dict[int, str] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._pieces: dict[_Key, list[str]] = {}
        self._whole: dict[_Key, str] = {}
        self._parts: dict[_Key, str | None] = {}
        """Text of each part when it was done; None while it is open."""

    def check(self, events: list[Event]) -> Iterator[str]:
        """Yield a description of each fault."""
        for event in events:
            kind: str = event["type"]
            name, _, stage = kind.rpartition(".")
            if kind == "response.output_item.added":
                yield from self._add(event)
            elif kind == "response.output_item.done":
                yield from self._finish(event)
            elif kind in TERMINAL:
                yield from self._compare(event["response"]["output"])
            elif name in _TEXTS and stage in ("delta", "done"):
                yield from self._text(event, name, stage)
            elif name in _PARTS and stage in ("added", "done"):
                yield from self._part(event, name, stage)

    def _add(self, event: Event) -> Iterator[str]:
        index = event["output_index"]
        if index in self._added:
            yield f"item {index} is added twice"
        if index != len(self._added):
            yield f"item {index} is added after {len(self._added)} items"
        self._added[index] = event["item"].get("id", "")

    def _check_item_is_open(self, event: Event) -> Iterator[str]:
        """An event of an item must come after the item was added and before it is done."""
        index = event["output_index"]
        if index not in self._added:
            yield f"{event['type']} of item {index} before it is added"
        elif event.get("item_id", self._added[index]) != self._added[index]:
            yield f"{event['type']} names another item than {index}"
        if index in self._done:
            yield f"{event['type']} of item {index} after its end"

    def _text(self, event: Event, name: str, stage: str) -> Iterator[str]:
        yield from self._check_item_is_open(event)
        index, place = event["output_index"], _place(event)
        key: _Key = (index, name, place)
        whole, listed = _TEXTS[name]
        if key in self._whole:
            yield f"{event['type']} of item {index} after its end"
        if self._parts.get((index, listed, place)) is not None:
            yield f"{event['type']} of item {index} after the end of its part"
        if stage == "delta":
            self._pieces.setdefault(key, []).append(event["delta"])
            return
        self._whole[key] = event[whole]
        if "".join(self._pieces.get(key, [])) != event[whole]:
            yield f"the deltas of item {index} do not add up to its text"

    def _part(self, event: Event, name: str, stage: str) -> Iterator[str]:
        yield from self._check_item_is_open(event)
        index, place, listed = event["output_index"], _place(event), _PARTS[name]
        key: _Key = (index, listed, place)
        inside = [text for text in self._pieces if text[::2] == key[::2] and _TEXTS[text[1]][1] == listed]
        if stage == "added":
            if key in self._parts:
                yield f"{event['type']} of item {index} comes twice"
            elif inside:
                yield f"{event['type']} of item {index} after the text that is in it"
            self._parts.setdefault(key, None)
            return
        text = _part_text(event["part"])
        if key not in self._parts:
            yield f"{event['type']} of item {index} before its part is added"
        elif self._parts[key] is not None:
            yield f"{event['type']} of item {index} comes twice"
        if any(one not in self._whole for one in inside):
            yield f"{event['type']} of item {index} before the end of its text"
        if "".join("".join(self._pieces[one]) for one in inside) != text:
            yield f"{event['type']} of item {index} has another text than its deltas"
        self._parts[key] = text

    def _finish(self, event: Event) -> Iterator[str]:
        index, item = event["output_index"], event["item"]
        if index not in self._added:
            yield f"item {index} is done before it is added"
        if index in self._done:
            yield f"item {index} is done twice"
        self._done[index] = item
        for key in self._parts:
            if key[0] == index:
                yield from self._check_part(key, item)
        pieces = [(key, piece) for key, piece in sorted(self._pieces.items()) if key[0] == index]
        for key, _ in pieces:
            if key not in self._whole:
                yield f"{key[1]} of item {index} never ends"
        whole = streamed_text(item)
        if whole is not None and "".join(text for _, piece in pieces for text in piece) != whole:
            yield f"the deltas of item {index} do not add up to the item"

    def _check_part(self, key: _Key, item: dict[str, Any]) -> Iterator[str]:
        """A part must be done before its item, and have the same text there."""
        index, listed, place = key
        if (text := self._parts[key]) is None:
            yield f"part {place} of item {index} never ends"
            return
        parts = item.get(listed)
        if parts is None:
            return  # reasoning may be streamed and left out of the item
        if place >= len(parts) or _part_text(parts[place]) != text:
            yield f"part {place} of item {index} has another text than the item"

    def _compare(self, output: list[dict[str, Any]]) -> Iterator[str]:
        for index in self._added.keys() - self._done.keys():
            yield f"item {index} is never done"
        if len(output) != len(self._done):
            yield f"{len(self._done)} items were done, and the terminal event has {len(output)}"
        elif output != [self._done[index] for index in sorted(self._done)]:
            yield "the terminal event has other items than those that were done"


def streamed_text(item: dict[str, Any]) -> str | None:
    """The text of an item that its deltas must add up to; None for items without one."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] == "custom_tool_call":
        return str(item["input"])
    if item["type"] == "message":
        return "".join(_part_text(part) for part in item["content"])
    return None


def _place(event: Event) -> int:
    return int(event.get("content_index") or event.get("summary_index") or 0)


def _part_text(part: dict[str, Any]) -> str:
    return str(part.get("text") or part.get("refusal") or "")


# --- The whole history -----------------------------------------------------------------------------


def how_checked(turns: Sequence[TurnResult], *, has_digests: bool) -> Checked:
    """How the history of a loop was verified. A rollout reports tokens once for all turns: not enough."""
    if has_digests:
        return "digest"
    return "tokens" if turns and all(turn.input_tokens for turn in turns) else "none"


def compare_with_full_history(loops: Sequence[LoopResult]) -> None:
    """Mark turns whose context differs in size from the same turn in ``http-full``. Updates the loops."""
    by_turn: dict[int, list[float]] = {}
    for loop in loops:
        if loop.mode == REFERENCE and not loop.faults:
            for turn, tokens, _ in _context_tokens(loop):
                by_turn.setdefault(turn.number, []).append(tokens)
    expected = {number: statistics.median(found) for number, found in by_turn.items()}
    for loop in loops:
        if loop.history_checked == "tokens" and loop.mode != REFERENCE:
            _compare_contexts(loop, expected)


def _compare_contexts(loop: LoopResult, expected: dict[int, float]) -> None:
    for turn, tokens, uncertainty in _context_tokens(loop):
        if (due := expected.get(turn.number)) is None:
            continue
        if abs(tokens - due) > _SLACK_TOKENS + _SLACK_SHARE * due + uncertainty:
            fault = f"the context was not what was sent: {tokens:.0f} tokens of it, {due:.0f} in {REFERENCE}"
            turn.wrong = fault if turn.wrong is None else f"{turn.wrong}; {fault}"
            return


def _context_tokens(loop: LoopResult) -> Iterator[tuple[TurnResult, float, float]]:
    """For each turn, the input tokens without those the model wrote itself, and their uncertainty."""
    spent = {0: (0, 0)}
    """By turn: what the model wrote in its context, without and as reasoning."""
    for turn in loop.turns:
        if not turn.input_tokens:
            return
        before = turn.number - 1 if turn.after is None else turn.after
        written, reasoned = spent.get(before, (0, 0))
        yield turn, turn.input_tokens - written, reasoned + (1 - _OUTPUT_SHARE) * written
        if turn.reasoning_tokens is None:
            return
        own = turn.output_tokens - turn.reasoning_tokens
        spent[turn.number] = (written + own, reasoned + turn.reasoning_tokens)


def _context_text(item: Item) -> str:
    if "output" in item:
        return text_of(item["output"])
    return text_of(item.get("content")) + str(item.get("name", "")) + str(item.get("arguments", ""))


class TokenFloor:
    """Lower bound of the input tokens of the next turn of a loop."""

    def __init__(self) -> None:
        self._tokens: float = 0.0
        """Lower bound of the context after the last turn that was added."""

    def with_items(self, items: Sequence[Item]) -> int:
        """The bound if the next turn sends these items; 0 before the first turn."""
        if not self._tokens:
            return 0
        size = sum(len(_RUNS.sub(r"\1", _context_text(item)).encode()) for item in items)
        return max(0, int(self._tokens + size / _BYTES_PER_TOKEN) - _SLACK_TOKENS // 2)

    def add(self, turn: TurnResult) -> None:
        """Raise the bound by a turn that has its own token counts."""
        if turn.input_tokens:
            kept = 0 if turn.reasoning_tokens is None else turn.output_tokens - turn.reasoning_tokens
            self._tokens = max(self._tokens, turn.input_tokens + _OUTPUT_SHARE * max(0, kept))


class Digest:
    """The digest of a growing context. ``str()`` gives its first 16 hexadecimal digits."""

    def __init__(self, instructions: str) -> None:
        self._state = b""
        if instructions:
            self._add("system", instructions)

    def add(self, items: Iterable[Item]) -> None:
        """Append items to the context."""
        for item in items:
            kind = item.get("type", "message")
            if kind == "message":
                self._add(item["role"], text_of(item["content"]))
            elif kind == "function_call":
                self._add("call", item["name"] + item["arguments"])
            elif kind == "function_call_output":
                self._add("output", text_of(item["output"]))

    def __str__(self) -> str:
        return self._state.hex()[:16]

    def _add(self, kind: str, text: str) -> None:
        self._state = sha256(self._state + kind.encode() + b"\0" + text.encode() + b"\0").digest()


def without_digests(faults: str) -> str:
    """Faults without the digests that they name, so that equal ones can be counted together."""
    return _DIGEST.sub("…", faults)


def find_digest(answer: Iterable[Item]) -> str | None:
    """The digest that an answer reports."""
    for item in answer:
        text = item.get("arguments") if item["type"] == "function_call" else text_of(item.get("content"))
        if found := _MARK.search(text or ""):
            return found.group(1)
    return None
