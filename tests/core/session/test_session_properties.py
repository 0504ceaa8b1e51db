"""Any interleaving of several connections, compared with a simple model.

Three connections, two of one tenant and one of another, share a store and the limits on memory. The state
machine sends creates, steers and appends, and does the work of engine and store in any order. The model knows
only what clients know: the frames they sent, and the contexts of finished responses. Every event is compared
with the model, and after each step the caches' byte counts with the states that they hold. Each accepted
steer or append is in the context of exactly one response, or is returned exactly once.

Clients also send whole histories again: their own, those of others, and changed ones. Whatever is recognised,
the context of a job is the one that its client sent, and the position that it continues from stands for the
beginning of that context, and was left by a job of the same tenant with the same head.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipring.base.errors import ApiError, ContextLengthExceeded, InvalidRequest, Unavailable
from slipring.core.betas import Betas
from slipring.core.chain.approvals import UNANSWERED, denial_text
from slipring.core.chain.resent_history import KnownContext
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Job, Text, Thought
from slipring.core.session.actions import Generate
from slipring.core.turn.steps.steered_ends import Steers
from slipring.core.turn.turn import Turn
from slipring.protocol.items.hosted_items import ProtocolError
from tests.core.connection import (
    Connection,
    Json,
    Seen,
    Server,
    call_output,
    context_of,
    mcp,
    message,
    visible,
)

LIMITS = {
    "max_in_flight": 3,
    "max_lanes": 3,
    "max_queued": 6,
    "max_steers": 3,
    "connection_cache_bytes": 10_500,  # about three responses
    "connection_compressed_bytes": 3_700,
    "tenant_cache_bytes": 14_500,
    "process_cache_bytes": 18_500,
    "recognised_bytes": 30_000,  # about seven responses
    "recognised_s": 500.0,
    "rollout_wait_s": 100.0,
    "max_age_s": 1_000.0,
    "age_grace_s": 20.0,
}
LANES = [None, "a", "b", "c", "one_too_many"]
ENDPOINTS = [(who, lane) for who in range(3) for lane in LANES]
REFUSED_ON_ARRIVAL = {"rate_limit_exceeded", "websocket_stream_limit_reached"}
REFUSED_AT_THE_END = {"websocket_connection_limit_reached", "service_unavailable"}
BAD_BODIES: list[Json] = [{"temperature": "hot"}, {"stream": False}]
TOO_LONG: Json = {"seed": 666}
"""A request whose job the engine refuses."""
ANSWERING = ("function_call_output", "mcp_approval_response")
TOO_LONG_STEER = "far too long"
"""Text of a steer that makes the engine refuse the successor's job."""
INVALID_GRAMMAR = "invalid"
"""A grammar that cannot be compiled."""
IN_GRAMMAR = "tools[0].format.definition"
UNSUPPORTED: list[Json] = [{"model": "unknown"}, {"background": True}, TOO_LONG]
CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}"), CallEnded()]
BROKEN_CALL: list[Delta] = [*CALL[:1], CallArguments("{"), CallEnded(False)]
MANAGED: list[Json] = [{"type": "compaction", "compact_threshold": 1000}]
ANSWERS: list[list[Delta]] = [[Text("words")], [Thought("hm")], CALL, CALL[:-1], BROKEN_CALL]


HOSTED_CALL: list[Delta] = [CallStarted("function", "f", "s"), CallArguments("{}"), CallEnded()]
BROKEN_HOSTED_CALL: list[Delta] = [*HOSTED_CALL[:1], CallArguments("{"), CallEnded(False)]
HOSTED_ANSWERS = [HOSTED_CALL, [*HOSTED_CALL, *HOSTED_CALL, Text("so")], [Text("so"), *HOSTED_CALL, *CALL]]
HOSTED_ANSWERS += [[*CALL, *HOSTED_CALL], [*BROKEN_HOSTED_CALL, *HOSTED_CALL]]


class Request(NamedTuple):
    """A create without its lane, parent and input."""

    store: bool
    generate: bool = True
    outputs: str = "all"
    fault: Json = {}  # noqa: RUF012
    managed: bool = False
    """Whether its context is compacted at the threshold."""
    rollout: bool = False
    grammar: str = ""
    """Of the tool that it defines; empty if it defines none."""
    instructions: str | None = None
    approval: str = ""
    """Whether calls of its MCP server need approval: ``always`` or ``never``; empty if it has no server."""


HOSTED = [
    *2 * [Request(store=False, approval="never"), Request(store=True, approval="never")],
    *(Request(store=False, approval="always"), Request(store=True, approval="always")),
    Request(store=True, approval="never", rollout=True),
]
ROLLOUTS = [Request(store=False, rollout=True), Request(store=True, rollout=True)]
WITH_GRAMMAR = [
    Request(store=True, grammar="good"),
    Request(store=False, grammar="good too", managed=True),
    Request(store=False, grammar="good", rollout=True),
]
GOOD_REQUESTS = [
    *(Request(store=False), Request(store=True), Request(store=True, managed=True)),
    *ROLLOUTS,
    *WITH_GRAMMAR,
    *HOSTED[2:],
]
REQUESTS = [
    *(2 * GOOD_REQUESTS),
    Request(store=False, generate=False),
    Request(store=True, generate=False, outputs="none"),
    Request(store=True, outputs="none"),
    Request(store=False, outputs="orphan"),
    *(Request(store=False, fault=fault) for fault in (*BAD_BODIES, *UNSUPPORTED)),
    Request(store=False, grammar=INVALID_GRAMMAR),
    Request(store=True, grammar=INVALID_GRAMMAR, rollout=True),
]


RESENT = [Request(store=False), Request(store=True), Request(store=False, instructions="Be brief.")]
"""Most requests that send a history again are like each other, so that they are recognised."""
CHANGES = ["none", "none", "none", "spelling", "no thoughts", "one text", "one item less", "one head less"]
"""What clients do to a history before they send it again."""
ODD_REQUESTS = REQUESTS[2 * len(GOOD_REQUESTS) :][:4]


def open_calls(items: Iterable[Json], before: Iterable[str] = ()) -> list[str]:
    """The calls that require an output after these items; ``before``: those that required one before."""
    calls = list(before)
    for item in items:
        if is_complete_call(item):
            calls.append(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] in calls:
            calls.remove(item["call_id"])
    return calls


def tools_of(request: Request) -> list[Json]:
    format = {"type": "grammar", "syntax": "regex", "definition": request.grammar}
    tools: list[Json] = [{"type": "custom", "name": "tool", "format": format}] if request.grammar else []
    return [*tools, mcp(require_approval=request.approval)] if request.approval else tools


def call_form(item: Json) -> Json:
    """A hosted call, or the request to approve one, as the model wrote it."""
    call = {"namespace": item["server_label"], "name": item["name"], "arguments": item["arguments"]}
    status = "incomplete" if item.get("status") == "incomplete" else "completed"
    return {"type": "function_call", "call_id": item["id"], **call, "status": status}


def result_of(call: Json) -> str:
    result: str = call["output"] if call["error"] is None else call["error"]["message"]
    return result


def is_complete_call(item: Json) -> bool:
    return item["type"] == "function_call" and item["status"] == "completed"


@dataclass(eq=False)
class Pending:
    """A create whose response has not ended."""

    serial: str
    lane: str | None
    previous: str | None
    input: list[Json]
    request: Request
    certain: bool
    """Whether its parent is cached and bound at once, so that it cannot be evicted before."""
    response_id: str | None = None
    loading: bool = False
    spoken: bool = False
    starts: int = 0
    """Jobs that have been started for it."""
    done: dict[int, Json] = field(default_factory=dict)
    """Finished output items, by index."""
    told: list[Json] = field(default_factory=list)
    """What its finished steps have added to the context."""
    step: dict[int, Json] = field(default_factory=dict)
    """What the model has written in the running step, by output index."""
    results: dict[int, Json] = field(default_factory=dict)
    """Outputs of the hosted calls of the running step."""
    approved: dict[str, str] = field(default_factory=dict)
    """What approved calls returned, by request."""
    claimed: bool = False
    history: int = 0
    """How many items of its input are a history as it was on the wire."""
    told_history: list[Json] = field(default_factory=list)
    """What a model reads of them."""
    left: list[Json] | None = None
    """The compacted context, if there was a compaction."""
    steers: dict[str, str] = field(default_factory=dict)
    """Accepted steers, by id."""
    follows: dict[str, str] = field(default_factory=dict)
    """For a successor: the steers that it was started for."""
    held: list[list[Json]] = field(default_factory=list)
    """Accepted appends that are not committed."""
    paused: bool = False
    unsaved: bool = False
    """Whether the store fails to save it."""

    @property
    def output(self) -> list[Json]:
        """Its finished output items."""
        return [self.done[index] for index in sorted(self.done)]

    @property
    def approvals(self) -> list[str]:
        """The requests that its input approves."""
        return [item["approval_request_id"] for item in self.input[self.history :] if item.get("approve")]

    def add(self, index: int, item: Json) -> None:
        """An output item is finished."""
        self.done[index] = item
        if item["type"] == "function_call_output":
            self.end_step()
            self.told.append(item)
        elif item["type"] == "mcp_approval_request":
            self.step[index] = call_form(item)
        elif item["type"] == "mcp_call" and item["approval_request_id"] is not None:
            self.approved[item["approval_request_id"]] = result_of(item)
        elif item["type"] == "mcp_call":
            self.step[index] = call_form(item)
            if item["status"] != "incomplete":
                self.results[index] = call_output(item["id"], result_of(item))
        elif item["type"] not in ("compaction", "mcp_list_tools"):
            self.step[index] = item

    def end_step(self) -> None:
        """The model has made all calls of a step before it reads any result."""
        for items in (self.step, self.results):
            self.told += [items[index] for index in sorted(items)]
            items.clear()

    @property
    def open_calls(self) -> list[str]:
        """Its calls without an output."""
        answers = [item for item in self.output if item["type"] == "function_call_output"]
        answered = {item["call_id"] for item in [*answers, *(item for held in self.held for item in held)]}
        calls = [item["call_id"] for item in self.output if is_complete_call(item)]
        return [call for call in calls if call not in answered]


@dataclass(eq=False)
class Made:
    """A finished response."""

    peer: "Peer"
    lane: str | None
    context: list[Json]
    open_calls: list[str]
    stored: bool
    status: str
    asked: list[str]
    """Approval requests that nobody has answered."""
    sent: list[Json]
    """The context as it was on the wire."""

    def is_reachable_by(self, peer: "Peer") -> bool:
        """Whether this connection may continue it."""
        return self.peer is peer or (self.stored and self.peer.tenant == peer.tenant)


def changed(history: list[Json], change: str, at: int) -> list[Json]:
    """A history as a client sends it again."""
    if change == "spelling":
        return list(map(respelled, history))
    if change == "no thoughts":
        return [item for item in history if item["type"] != "reasoning"]
    place = at % len(history)
    if change == "one item less":
        return history[:place] + history[place + 1 :]
    if change == "one head less":
        return history[place:]
    if change == "one text":
        other_texts = {
            "message": {"content": "other"},
            "function_call": {"arguments": "other"},
            "function_call_output": {"output": "other"},
            "reasoning": {"content": [{"type": "reasoning_text", "text": "other"}]},
        }
        other = {**history[place], **other_texts.get(history[place]["type"], {})}
        return [*history[:place], other, *history[place + 1 :]]
    return history


def respelled(item: Json) -> Json:
    """An item with the same content, as clients of other libraries spell it."""
    status = {} if item["type"] != "function_call" else {"status": item["status"]}
    other = {key: value for key, value in reversed(item.items()) if key not in ("id", "status")} | status
    if item["type"] == "message" and isinstance(item["content"], list):
        other["content"] = "".join(part["text"] for part in item["content"])
    elif item["type"] == "message":
        other["content"] = [{"type": "input_text", "text": item["content"]}]
    return other


def _is_whole(sent: list[Json]) -> bool:
    """Whether items on the wire are a context that can be sent again: not if a summary replaces some, or if
    an approval was never answered."""
    answered = {item.get("approval_request_id") for item in sent if "approve" in item}
    requests = {item["id"] for item in sent if item["type"] == "mcp_approval_request"}
    return requests <= answered and not any(item["type"] == "compaction" for item in sent)


class Model:
    """What all clients together know."""

    def __init__(self) -> None:
        self.made: dict[str, Made] = {}
        self.ids: list[str] = []
        """Every response id that was sent, newest last."""

    def context(self, asked: Pending) -> list[Json]:
        """The expected context of a create's job. No step runs."""
        if asked.left is not None:
            return asked.left + asked.told
        past = self.made[asked.previous].context if asked.previous is not None else []
        return past + self.told_input(asked) + asked.told

    def told_input(self, asked: Pending) -> list[Json]:
        """The input of a create as its model reads it."""
        answers = {item["approval_request_id"]: item for item in asked.input if "approve" in item}
        told = []
        if asked.previous is not None and asked.request.generate:
            open_requests = self.made[asked.previous].asked
            told = [call_output(each, UNANSWERED) for each in open_requests if each not in answers]
        told += asked.told_history
        for item in asked.input[asked.history :]:
            if "approve" not in item:
                told.append(item)
            elif item["approve"]:
                told.append(
                    call_output(item["approval_request_id"], asked.approved[item["approval_request_id"]])
                )
            else:
                told.append(call_output(item["approval_request_id"], denial_text(None)))
        return told

    def outcomes(self, peer: "Peer", asked: Pending) -> set[str | None]:
        """The possible outcomes of a create that begins: the param or message of a refusal, or None."""
        if asked.request.fault in BAD_BODIES:
            return {*asked.request.fault}
        may: set[str | None] = set()
        parent = self.made.get(asked.previous or "")
        if asked.previous is not None:
            reachable = parent is not None and parent.is_reachable_by(peer)
            if not reachable or not (parent.stored or asked.certain):
                may.add("previous_response_id")
            if not reachable:
                return may
        open_calls = parent.open_calls if parent is not None else []
        objection = self._objection(asked, open_calls)
        used = {(peer.tenant, each) for each in asked.approvals} & peer.connection.server.used
        may.add("input" if objection is None and used and not asked.claimed else objection)
        return may

    def _objection(self, asked: Pending, open_calls: list[str]) -> str | None:
        if "model" in asked.request.fault:
            return "model"
        left = list(open_calls)
        for item in asked.input:
            if item["type"] == "function_call":
                left += [item["call_id"]] if item["status"] == "completed" else []
            elif "call_id" in item:
                if item["call_id"] not in left:
                    return f"No tool call found for function call output with call_id {item['call_id']}."
                left.remove(item["call_id"])
        if left and asked.request.generate:
            return f"No tool output found for function call {left[0]}."
        if asked.request.fault == TOO_LONG:
            return "input"
        if asked.request.grammar == INVALID_GRAMMAR:
            return IN_GRAMMAR
        return "background" if asked.request.fault else None

    def finish(self, peer: "Peer", asked: Pending, status: str, *, stored: bool) -> None:
        """Record a finished response."""
        assert asked.response_id is not None
        parent = self.made.get(asked.previous or "")
        calls = open_calls(asked.input, parent.open_calls if parent else [])
        for item in asked.output:
            cut_off = status != "completed" and item is asked.output[-1]
            if is_complete_call(item) and not cut_off:
                calls.append(item["call_id"])
            elif item["type"] == "function_call_output":
                calls.remove(item["call_id"])
        asked.end_step()
        requests = [item["id"] for item in asked.output if item["type"] == "mcp_approval_request"]
        if parent is not None and not asked.request.generate:
            requests = [*parent.asked, *requests]
        sent = [*(parent.sent if parent is not None else []), *asked.input, *asked.output]
        made = Made(peer, asked.lane, self.context(asked), calls, stored, status, requests, sent)
        self.made[asked.response_id] = made


def refuse_too_long(job: Job) -> ApiError | None:
    too_long = job.settings.seed == TOO_LONG["seed"] or any(
        TOO_LONG_STEER.encode() in i.raw for i in job.input
    )
    return ContextLengthExceeded(2, 1) if too_long else None


class Peer:
    """One connection and its client, which checks every event."""

    def __init__(self, model: Model, server: Server, tenant: str) -> None:
        self.model = model
        self.tenant = tenant
        self.connection = Connection(
            server,
            tenant,
            on_event=self._see,
            on_start=self._check_job,
            refuses=refuse_too_long,
            betas=Betas(rollout=True, inject=True, tool_output=True),
        )
        self.connection.leaves_positions = True
        self.opened_at = server.now
        self.deadline: float | None = None
        """Set when the end of the connection is announced."""
        self.queues: dict[str | None, deque[Pending]] = {lane: deque() for lane in LANES}
        self.lanes: set[str | None] = {None}
        self.refusal: str | None = None
        self.evictable: set[str] = set()
        """Parents whose continuation failed on their own lane."""
        self.evictions_before = self.evictions
        self.waiting: dict[str, dict[str, str]] = {}
        """By response id: steers that wait for required outputs."""
        self.pending: set[str] = set()
        """Steers for which a pending event was sent."""
        self.owed: set[str] = set()
        """Steers that must be returned before the step ends."""
        self.too_long: set[str] = set()
        """Responses with a steer that is too long."""
        self.settled: set[str] = set()
        """Steers that were committed or returned."""
        self.appended: set[str] = set()
        """Outputs of accepted appends that are neither committed nor returned."""
        self.steering = ""
        """The text of the steer that is being sent."""
        self.refused_appends: list[Json] = []
        """Events that refuse other appends."""

    @property
    def unanswered(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def evictions(self) -> int:
        """Evictions by all limits so far."""
        return sum(scope.evictions for scope in self.connection.cache._scopes)

    @property
    def busy(self) -> list[str | None]:
        """Lanes with a turn in progress."""
        connection = self.connection
        created = (*connection.listings, *connection.starts, *connection.saves)
        working = [turn.asked.lane for turn in (*self._beginning(), *created)]
        return working + self.calling + self.paused

    @property
    def calling(self) -> list[str | None]:
        """Lanes with a response that only waits for hosted calls."""
        calling = {action.turn.asked.lane for action in self.connection.calls.values()}
        return [lane for lane in LANES if lane in calling and not self.is_at("starts", lane)]

    @property
    def paused(self) -> list[str | None]:
        """Lanes with a paused rollout."""
        return [head.lane for head in self._heads() if head.paused and not self.is_at("saves", head.lane)]

    def cached(self) -> set[str]:
        return {response_id for response_id in self.model.ids if response_id in self.connection.cache}

    def ask(self, asked: Pending) -> None:
        """Send a create. It is queued unless it is refused on arrival."""
        request, queue = asked.request, self.queues[asked.lane]
        expected = self._refusal_on_arrival(asked.lane)
        self.refusal = None
        queue.append(asked)
        with self.evicting_only_evictable():
            self.connection.create(
                asked.lane,
                asked.previous,
                input=asked.input,
                metadata={"serial": asked.serial},
                store=request.store,
                generate=request.generate,
                context_management=MANAGED if request.managed else None,
                rollout=request.rollout,
                tools=tools_of(request),
                instructions=request.instructions,
                **request.fault,
            )
        assert self.refusal == expected
        if expected is not None:
            assert queue.pop() is asked

    def steer(self, target: str, text: str) -> None:
        """Steer a response, of this connection or another."""
        expected = self._answer_to_steer(target)
        self.steering = text
        event = self.connection.steer(target, text)
        assert event.get("error", {}).get("code") == expected
        assert event["steer"]["previous_response_id"] == target
        assert expected is None or event["steer"]["input"] == text

    def _answer_to_steer(self, target: str) -> str | None:
        for asked in self._heads():
            if asked.response_id == target:
                if not asked.request.generate or asked.request.managed:
                    return "steering_not_supported"
                if self.ending:
                    return "response_not_active"
                return "too_many_pending_steers" if len(asked.steers) >= LIMITS["max_steers"] else None
        if target not in self.connection.cache:
            return "response_not_found"
        is_complete = self.model.made[target].status == "completed"
        return "response_already_completed" if is_complete else "response_not_active"

    def append(self, target: str, items: list[Json], kind: str) -> None:
        """Append to a response, of this connection or another."""
        asked = next((asked for asked in self._heads() if asked.response_id == target), None)
        expected = self._answer_to_append(asked, target, items)
        frame = self.connection.append_frame(target, *items, kind=kind)
        if expected is None and self.rollout_bytes + len(frame) > LIMITS["connection_cache_bytes"]:
            expected = "too_much_pending_input"
        self.refused_appends = []
        if expected is None:
            assert asked is not None
            self.appended.update(item["output"] for item in items)
            asked.held.append(items)
            asked.paused = asked.paused and bool(asked.open_calls)
            asked.spoken = asked.spoken and asked.paused
        self.connection.receive(frame)
        if expected is None:
            assert not self.refused_appends
            return
        (event,) = self.refused_appends
        assert (event["response_id"], event["input"]) == (target, items)
        if kind == "append":
            assert event["error"]["code"] == expected
        else:
            has_ended = expected == "response_already_completed"
            assert event["error"]["code"] == (expected if has_ended else "response_not_found")

    @property
    def rollout_bytes(self) -> int:
        """Bytes of its rollouts, read from the session because clients cannot know them."""
        running = self.connection.session.shared.lanes.running()
        rollouts = [turn.planned.rollout for turn in running if turn.planned.rollout]
        return sum(each.size_bytes + each.held_bytes for each in rollouts)

    def _answer_to_append(self, asked: Pending | None, target: str, items: list[Json]) -> str | None:
        if asked is None:
            return "response_already_completed" if target in self.connection.cache else "response_not_found"
        if not asked.request.rollout:
            return "append_not_supported"
        if self.is_at("saves", asked.lane):
            return "response_already_completed"
        calls = [item["call_id"] for item in items]
        is_expected = set(calls) <= set(asked.open_calls) and len(set(calls)) == len(calls)
        return None if is_expected else "invalid_input"

    def _heads(self) -> list[Pending]:
        return [queue[0] for queue in self.queues.values() if queue]

    @contextmanager
    def evicting_only_evictable(self) -> Iterator[None]:
        """Check that responses are evicted only by failures on their own lane, or by a limit: a response that
        fails may be kept."""
        before, evictions = self.cached(), self.evictions
        yield
        assert before - self.cached() <= self.evictable or self.evictions > evictions

    def begins_at_once(self, lane: str | None) -> bool:
        return not self.queues[lane] and len(self.busy) < LIMITS["max_in_flight"]

    def _refusal_on_arrival(self, lane: str | None) -> str | None:
        """The limits on lanes and on the queue refuse at once, not in the order of the lane."""
        if lane not in self.lanes and len(self.lanes) > LIMITS["max_lanes"]:
            return "websocket_stream_limit_reached"
        self.lanes.add(lane)
        waiting = self.unanswered - len(self.busy)
        if waiting >= LIMITS["max_queued"] and not self.begins_at_once(lane):
            return "rate_limit_exceeded"
        return None

    def head(self, lane: str | None) -> Pending:
        return self.queues[lane][0]

    def is_at(self, work: str, lane: str | None) -> bool:
        return any(turn.asked.lane == lane for turn in getattr(self.connection, work))

    def load(self, lane: str | None) -> None:
        self.head(lane).loading = True
        self.connection.load(lane)

    @property
    def ending(self) -> bool:
        return self.deadline is not None

    def end_until(self, deadline: float) -> None:
        """The connection ends: turns that have begun may run until the deadline, others may not begin."""
        if self.deadline is None:
            self.deadline = deadline
            begun = [self.head(turn.asked.lane) for turn in self._beginning()]
            taken = {asked.previous for asked in begun if asked.request.generate and self._waits_for(asked)}
            for target in self.waiting.keys() - taken:
                self.owed.update(self.waiting[target])
        for turn in self._beginning():
            self.head(turn.asked.lane).loading = True

    def _beginning(self) -> list[Turn]:
        """Turns that have begun but have no response yet."""
        connection = self.connection
        before = (connection.loads, connection.resolves, connection.checks, connection.claims)
        return [turn for work in (*before, connection.weighs) for turn in work]

    def claim(self, lane: str | None) -> None:
        """Use the approvals of a create, or refuse it because they were used before."""
        asked = self.head(lane)
        used = {(self.tenant, each) for each in asked.approvals}
        asked.claimed = not used & self.connection.server.used
        self.connection.claim(lane)

    def check(self, lane: str | None) -> None:
        """Compile the grammar of a request, or refuse it."""
        if self.head(lane).request.grammar == INVALID_GRAMMAR:
            self.connection.fail(lane, InvalidRequest("Invalid grammar.", param=IN_GRAMMAR))
        else:
            self.connection.check(lane)

    # Events, compared with the model.

    def _see(self, event: Json) -> None:
        lane, kind = event.get("stream_id"), event["type"]
        if kind == "error":
            self._see_error(event, lane)
        elif kind == "response.created":
            self._see_created(event["response"], lane)
        elif kind == "response.in_progress":
            assert self.head(lane).request.generate, "a warmup is never in progress"
        elif kind == "response.output_item.done":
            self._see_item(event, self.head(lane))
        elif kind == "response.done":
            self._see_pause(event, self.head(lane))
        elif kind in ("response.append.failed", "response.inject.failed"):
            self._see_append_failed(event, lane)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._see_terminal(event["response"], lane)
        elif kind.startswith("response.steer."):
            self._see_steer(kind, event, lane)

    def _see_created(self, response: Json, lane: str | None) -> None:
        asked = self.head(lane)
        assert asked.response_id is None
        assert response["metadata"] == {"serial": asked.serial}, "out of order on its lane"
        assert None in self.model.outcomes(self, asked)
        assert not self.ending or asked.loading, "begun though the connection ends"
        if asked.request.generate and self._waits_for(asked):
            added = self.waiting.pop(asked.previous or "")
            answers = [item["type"] in ANSWERING for item in asked.input]
            at = len(answers) - answers[::-1].index(True) if True in answers else 0
            asked.input = [*asked.input[:at], *map(message, added.values()), *asked.input[at:]]
            self._settle(added)
        self._settle(asked.follows)
        asked.follows = {}
        asked.response_id = response["id"]
        self.model.ids.append(response["id"])

    def _see_item(self, event: Json, asked: Pending) -> None:
        item = event["item"]
        asked.add(event["output_index"], item)
        if item["type"] == "compaction":
            self._see_compaction(item, asked)
        elif item["type"] == "function_call_output":
            self._see_appended(item, asked)

    def _see_pause(self, event: Json, asked: Pending) -> None:
        assert not self.ending, "paused though the connection ends"
        asked.paused = True
        assert [stub["call_id"] for stub in event["required_input"]] == asked.open_calls

    def _see_appended(self, item: Json, asked: Pending) -> None:
        """An append was committed."""
        self.appended.remove(item["output"])
        first = asked.held[0]
        output = first.pop(0)
        assert (output["call_id"], output["output"]) == (item["call_id"], item["output"])
        if not first:
            asked.held.pop(0)
        asked.spoken = False

    def _see_append_failed(self, event: Json, lane: str | None) -> None:
        """An append was refused, or it was held and the response has ended."""
        outputs = {item["output"] for item in event["input"]}
        queue = self.queues[lane]
        if queue and event["input"] in queue[0].held and outputs <= self.appended:
            self.appended -= outputs
            queue[0].held.remove(event["input"])
        else:
            self.refused_appends.append(event)

    def _see_compaction(self, item: Json, asked: Pending) -> None:
        """The context is replaced by items that include the newest input."""
        content = self.connection.server.ports.seal.open(self.tenant, item["encrypted_content"])
        asked.left = [json.loads(each.raw) for each in content]
        assert asked.input[-1] in asked.left

    def _see_terminal(self, response: Json, lane: str | None) -> None:
        asked = self.queues[lane].popleft()
        assert response["id"] == asked.response_id
        assert not asked.held, "neither committed nor returned"
        asked.paused = False
        if response["status"] == "failed":
            self._see_failed(response, asked)
            self.owed.update(asked.steers)
            if self._waits_for(asked):
                self.owed.update(self.waiting[asked.previous or ""])
        else:
            assert response["output"] == asked.output
            self._check_cached(response["id"], lane)
            self.model.finish(self, asked, response["status"], stored=response["store"])
            if asked.steers:
                self._expect_successor(asked, response["id"])

    def _see_failed(self, response: Json, asked: Pending) -> None:
        """A response that fails in a later step keeps the earlier ones. The client sees that by its usage."""
        is_kept = response["usage"] is not None
        if asked.starts > 1 and asked.left is None and not asked.unsaved:
            assert is_kept, "its finished steps are lost"
        if not is_kept:
            self._check_eviction(asked)
            return
        assert asked.starts > 1 or asked.told or asked.step or asked.approved, "nothing to keep"
        if response["output"] != asked.output:
            # Without what the failed step wrote, unless it called hosted tools.
            asked.done = {n: item for n, item in asked.done.items() if item in response["output"]}
            assert response["output"] == asked.output
            asked.step.clear()
            assert not asked.results, "the results of hosted calls are lost"
        self._check_cached(response["id"], asked.lane)
        self.model.finish(self, asked, "failed", stored=response["store"])

    # Steers.

    def _expect_successor(self, asked: Pending, response_id: str) -> None:
        if self.ending:
            self.owed.update(asked.steers)
        elif self.model.made[response_id].open_calls:
            self.waiting[response_id] = asked.steers
        else:
            successor = Pending(
                serial=asked.serial,
                lane=asked.lane,
                previous=response_id,
                input=list(map(message, asked.steers.values())),
                request=asked.request,
                certain=True,
                follows=asked.steers,
            )
            self.queues[asked.lane].appendleft(successor)

    def _waits_for(self, asked: Pending) -> bool:
        """Whether steers wait for this create."""
        return asked.previous in self.waiting and self.model.made[asked.previous].lane == asked.lane

    def _settle(self, steers: Iterable[str]) -> None:
        assert self.settled.isdisjoint(steers), "committed or returned twice"
        self.settled.update(steers)

    def _see_steer(self, kind: str, event: Json, lane: str | None) -> None:
        if kind == "response.steer.accepted":
            self.head(lane).steers[event["steer"]["id"]] = self.steering
        elif kind == "response.steer.pending":
            self._see_pending(event)
        elif kind == "response.steer.failed" and "id" in event["steer"]:
            self._see_steer_failed(event["steer"], lane)

    def _see_pending(self, event: Json) -> None:
        target, steer = event["steer"]["previous_response_id"], event["steer"]["id"]
        assert steer in self.waiting[target]
        assert steer not in self.pending, "sent twice"
        self.pending.add(steer)
        required = [stub["call_id"] for stub in event["required_input"]]
        assert required == self.model.made[target].open_calls

    def _see_steer_failed(self, steer: Json, lane: str | None) -> None:
        target, steer_id = steer["previous_response_id"], steer["id"]
        self._settle([steer_id])
        queue = self.queues[lane]
        if steer_id in self.waiting.get(target, {}):
            assert self.waiting[target].pop(steer_id) == steer["input"]
            if TOO_LONG_STEER in steer["input"]:
                self.too_long.add(target)
            if not self.waiting[target]:
                del self.waiting[target]
        elif queue and steer_id in queue[0].follows:
            # A successor that is refused: the client did not request it and gets no error.
            assert queue[0].follows.pop(steer_id) == steer["input"]
            assert TOO_LONG_STEER in str(queue[0].input)
            if not queue[0].follows:
                queue.popleft()
        else:
            assert steer_id in self.owed
        self.owed.discard(steer_id)

    def _check_cached(self, response_id: str, lane: str | None) -> None:
        """A finished response is cached, unless a limit or the next create evicted it."""
        was_evicted = self.evictions > self.evictions_before
        is_claimed = any(asked.previous == response_id for asked in self.queues[lane])
        assert response_id in self.connection.cache or was_evicted or is_claimed

    def _see_error(self, event: Json, lane: str | None) -> None:
        code = event["error"]["code"]
        if code in REFUSED_ON_ARRIVAL:
            assert self.refusal is None
            self.refusal = code
        elif code in REFUSED_AT_THE_END and not self.unanswered:
            assert self.ending
            assert lane is None
        else:
            asked = self.queues[lane].popleft()
            assert asked.response_id is None, "an error after response.created"
            self._check_refusal(asked, event["status"], event["error"])
            self._check_eviction(asked)
            assert not self._waits_for(asked), "kept though their response is evicted"

    def _check_refusal(self, asked: Pending, status: int, error: Json) -> None:
        if error["code"] in REFUSED_AT_THE_END:
            assert self.ending
            assert not asked.loading
        elif status == 500:
            assert asked.loading
        elif error["param"] != "input" or asked.previous not in self.too_long:
            assert {error["param"], error["message"]} & self.model.outcomes(self, asked)

    def _check_eviction(self, asked: Pending) -> None:
        parent = self.model.made.get(asked.previous or "")
        if asked.previous is None or parent is None:
            return
        if parent.peer is self and parent.lane == asked.lane:
            assert asked.previous not in self.connection.cache
            self.evictable.add(asked.previous)

    def _check_job(self, start: Generate) -> None:
        job, asked = start.job, self.head(start.turn.asked.lane)
        assert (job.response_id, job.tenant) == (asked.response_id, self.tenant)
        assert job.generate is asked.request.generate
        continues = asked.starts > 0 and asked.left is None
        asked.starts += 1
        asked.spoken = False
        asked.end_step()
        parent = asked.response_id if continues else asked.previous if asked.left is None else None
        if job.recognised:
            assert parent is None
            assert not job.fork
        else:
            assert (job.parent.id if job.parent else None) == parent
        self._check_position(job)
        context, expected = context_of(job), self.model.context(asked)
        if job.offer.forbidden:
            context.pop()  # the request for a summary
            # Before it, there is a placeholder output for each truncated call.
            assert {item["type"] for item in context[len(expected) :]} <= {"function_call_output"}
            context = context[: len(expected)]
        assert context == expected

    def _check_position(self, job: Job) -> None:
        """The position that a job continues from stands for its parent's context."""
        seen = job.parent.position if job.parent is not None else None
        if job.parent is None or seen is None:
            assert not job.recognised
            return
        assert isinstance(seen, Seen)
        assert seen.content == visible(job.parent.context())
        if job.recognised:
            assert (seen.tenant, seen.model, seen.head) == (self.tenant, job.model.name, job.head)


class Connections(RuleBasedStateMachine):
    """Rules pick existing objects by number, so that every step does something."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(**LIMITS)
        self.model = Model()
        self.peers = [Peer(self.model, self.server, tenant) for tenant in ("alice", "alice", "bob")]
        self.disconnected: list[Peer] = []
        self.asked = 0
        self.quiet_steps = 0
        """Steps since the last failure or disconnect; bounds their rate so that responses finish."""

    # Clients.

    @rule(place=st.sampled_from(ENDPOINTS), previous=st.integers(0, 7), request=st.sampled_from(REQUESTS))
    def create(self, place, previous, request):
        """Continue any of the latest responses, an unknown one, or none."""
        ids = [None, None, *reversed(self.model.ids[-5:]), "resp_unknown"]
        self._ask(place, ids[previous % len(ids)], request)

    @rule(place=st.sampled_from(ENDPOINTS), request=st.sampled_from(GOOD_REQUESTS))
    def flood(self, place, request):
        """Send four creates: more than a lane runs at once, and repeated, more than a connection queues."""
        own = self._own(place[0])
        for _ in range(4):
            self._ask(place, own[-1] if own else None, request)

    @precondition(lambda self: self.model.made)
    @rule(place=st.sampled_from(ENDPOINTS), pick=st.integers(0, 4), request=st.sampled_from(GOOD_REQUESTS))
    def continue_own(self, place, pick, request):
        """Continue or fork a reachable response, with all required outputs."""
        own = self._own(place[0])
        self._ask(place, own[-1 - pick % len(own)] if own else None, request)

    @precondition(lambda self: self.model.made)
    @rule(
        place=st.sampled_from(ENDPOINTS),
        pick=st.integers(0, 5),
        change=st.sampled_from(CHANGES),
        at=st.integers(0, 20),
        request=st.sampled_from([*RESENT, *RESENT, *GOOD_REQUESTS]),
        words=st.sampled_from(ANSWERS),
    )
    def resend(self, place, pick, change, at, request, words):
        """Send the context of one of the latest responses, of any client, instead of its id. If it begins at
        once, it ends at once, so that histories grow."""
        made = list(self.model.made.values())[-6:]
        history = changed(made[-1 - pick % len(made)].context, change, at)
        answers = [call_output(call) for call in open_calls(history)]
        self._ask(place, None, request, history=[*history, *answers])
        who, lane = place
        peer = self.peers[who]
        if peer.is_at("starts", lane) and peer.head(lane).input[: len(history)] == history:
            peer.connection.finish(*words, Text("done"), lane=lane)
            if peer.is_at("saves", lane):
                peer.connection.save(lane)

    @rule(place=st.sampled_from(ENDPOINTS), turns=st.integers(2, 4), request=st.sampled_from(RESENT))
    def loop(self, place, turns, request):
        """A client that sends its whole history with every turn, if its lane is free."""
        who, lane = place
        history: list[Json] = []
        for _ in range(turns):
            self._ask(place, None, request, history=history)
            peer = self.peers[who]
            if not peer.is_at("starts", lane) or peer.head(lane).serial != str(self.asked):
                return
            response_id = peer.head(lane).response_id
            peer.connection.finish(Thought("hm"), Text("done"), lane=lane)
            if peer.is_at("saves", lane):
                peer.connection.save(lane)
            history = self.model.made[response_id].context

    def _own(self, who: int) -> list[str]:
        """The responses that a client may continue, newest last."""
        made = self.model.made.items()
        return [response_id for response_id, response in made if response.is_reachable_by(self.peers[who])]

    def _ask(
        self,
        place: tuple[int, str | None],
        previous: str | None,
        request: Request,
        history: Iterable[Json] = (),
        told: list[Json] | None = None,
    ) -> None:
        """``told``: what a model reads of the history."""
        who, lane = place
        peer = self._peer(who)
        self.asked += 1
        self.quiet_steps += 1
        asked = Pending(
            serial=str(self.asked),
            lane=lane,
            previous=previous,
            input=[*history, *self._outputs(previous, request), message(f"say {self.asked}")],
            request=request,
            certain=self._is_certain(peer, lane, previous),
            history=len(list(history)) if told is not None else 0,
            told_history=told or [],
        )
        peer.ask(asked)

    def _outputs(self, previous: str | None, request: Request) -> list[Json]:
        if request.outputs == "orphan":
            return [call_output("call_unknown")]
        made = self.model.made.get(previous or "")
        if made is None or request.outputs != "all":
            return []
        answers = [
            {"type": "mcp_approval_response", "approval_request_id": each, "approve": n % 3 != 2}
            for n, each in enumerate(made.asked if request.approval else [])
        ]
        return [*answers, *(call_output(call) for call in made.open_calls)]

    def _is_certain(self, peer: Peer, lane: str | None, previous: str | None) -> bool:
        """Whether the parent is cached, and is pinned by a fork or bound at once."""
        if previous is None or previous not in peer.connection.cache:
            return False
        return peer.begins_at_once(lane) or self.model.made[previous].lane != lane

    @rule(who=st.integers(0, 2), pick=st.integers(0, 3), text=st.sampled_from(["", "", "", TOO_LONG_STEER]))
    def steer(self, who, pick, text):
        """Steer any of the latest responses, running or not, or an unknown one."""
        ids = [*reversed(self.model.ids[-3:]), "resp_unknown"]
        self._steer(self._peer(who), ids[pick % len(ids)], text)

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8), times=st.integers(1, 4), text=st.sampled_from(["", "", TOO_LONG_STEER]))
    def steer_a_running_response(self, pick, times, text):
        peer, lane = self._pick(pick)
        for _ in range(times):
            # A response that waits for hosted calls ends at once, and its successor may be refused.
            response_id = peer.head(lane).response_id if peer.queues[lane] else None
            if response_id is not None:
                self._steer(peer, response_id, text)

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8), text=st.sampled_from(["", "", TOO_LONG_STEER]))
    def steer_a_response_with_a_call(self, pick, text):
        """Steer a response, then end it with a call: the steers wait."""
        peer, lane = self._pick(pick)
        asked = peer.head(lane)
        if peer.is_at("starts", lane) and asked.request.generate and not asked.request.managed:
            assert asked.response_id is not None
            self._steer(peer, asked.response_id, text)
            peer.connection.finish(*CALL, lane=lane)
            if peer.is_at("saves", lane):
                peer.connection.save(lane)

    @precondition(lambda self: any(peer.waiting for peer in self.peers))
    @rule(pick=st.integers(0, 8), request=st.sampled_from([*GOOD_REQUESTS, *ODD_REQUESTS]))
    def continue_with_waiting_steers(self, pick, request):
        waiting = [(who, target) for who, peer in enumerate(self.peers) for target in peer.waiting]
        who, target = waiting[pick % len(waiting)]
        self._ask((who, self.model.made[target].lane), target, request)

    @rule(who=st.integers(0, 2), pick=st.integers(0, 3), text=st.sampled_from(["", "x" * 200, "x" * 900]))
    def stream_output_of_anything(self, who, pick, text):
        ids = [*reversed(self.model.ids[-3:]), "resp_unknown"]
        self._stream(self._peer(who), ids[pick % len(ids)], "call_unknown", text)

    @precondition(lambda self: any(self._open_calls()))
    @rule(pick=st.integers(0, 8), text=st.sampled_from(["x", "x" * 200, "x" * 900]), done=st.booleans())
    def stream_output(self, pick, text, done):
        """Send a piece of the output of a call that some response waits for, perhaps the last one."""
        found = list(self._open_calls())
        peer, target, call_id = found[pick % len(found)]
        self._stream(peer, target, call_id, text)
        if done:
            peer.connection.end_output(target, call_id)

    @precondition(lambda self: any(peer.connection.prefills for peer in self.peers))
    @rule(pick=st.integers(0, 8), tokens=st.sampled_from([100, 0, None]))
    def end_prefill(self, pick, tokens):
        running = [(peer, target) for peer in self.peers for target in peer.connection.prefills]
        peer, target = running[pick % len(running)]
        peer.connection.end_prefill(target, tokens)

    def _open_calls(self) -> Iterator[tuple[Peer, str, str]]:
        """Calls without outputs, of responses that run or have ended."""
        for peer in self.peers:
            if peer.connection.close is None:
                heads = peer._heads()
                yield from (
                    (peer, a.response_id, call) for a in heads for call in a.open_calls if a.response_id
                )
                made = [(id, made) for id, made in self.model.made.items() if made.peer is peer]
                yield from ((peer, id, call) for id, each in made[-5:] for call in each.open_calls)

    def _stream(self, peer: Peer, target: str, call_id: str, text: str) -> None:
        """Send a piece. It is accepted exactly if its call waits for an output that can still be sent."""
        heads = {asked.response_id: asked for asked in peer._heads() if asked.response_id}
        cached = target in peer.connection.cache
        if target in heads:
            asked = heads[target]
            is_open = call_id in asked.open_calls or call_id in self._earlier_calls(asked)
        else:
            made = self.model.made.get(target)
            is_latest = cached and peer.connection.cache.is_latest(target)
            lane_is_free = made is not None and not peer.queues[made.lane]
            is_open = is_latest and lane_is_free and made is not None and call_id in made.open_calls
        refusals = peer.connection.stream_output(target, call_id, text)
        if is_open or peer.ending:
            assert not refusals
            return
        (refusal,) = refusals
        known = target in heads or cached
        assert refusal["type"] == "response.tool_output.failed"
        assert refusal["error"]["code"] == ("call_not_open" if known else "response_not_found")

    def _earlier_calls(self, asked: Pending) -> list[str]:
        """The open calls of the response that this one continues, without those that it answers."""
        parent = self.model.made.get(asked.previous or "")
        answered = {item.get("call_id") for item in asked.input}
        return [call for call in parent.open_calls if call not in answered] if parent is not None else []

    @rule(who=st.integers(0, 2), pick=st.integers(0, 3), kind=st.sampled_from(["append", "inject"]))
    def append_to_anything(self, who, pick, kind):
        ids = [*reversed(self.model.ids[-3:]), "resp_unknown"]
        self._append(self._peer(who), ids[pick % len(ids)], ["call_unknown"], kind)

    @precondition(lambda self: any(self._rollouts()))
    @rule(
        pick=st.integers(0, 8),
        which=st.sampled_from(["all", "all", "one", "last", "twice", "orphan"]),
        kind=st.sampled_from(["append", "append", "inject"]),
    )
    def append(self, pick, which, kind):
        """Append outputs that a rollout waits for, or that are invalid."""
        found = list(self._rollouts())
        peer, asked = found[pick % len(found)]
        assert asked.response_id is not None
        owed = asked.open_calls
        calls = {"all": owed, "one": owed[:1], "last": owed[-1:], "twice": owed[:1] * 2, "orphan": []}[which]
        self._append(peer, asked.response_id, calls or ["call_unknown"], kind)

    @rule(place=st.sampled_from(ENDPOINTS), request=st.sampled_from(ROLLOUTS), calls=st.integers(1, 3))
    def start_rollout(self, place, request, calls):
        """Generate a rollout and pause it, if its lane is free."""
        who, lane = place
        self._ask(place, None, request)
        peer = self.peers[who]
        if peer.is_at("starts", lane) and peer.head(lane).request.rollout:
            peer.connection.finish(*(calls * CALL), lane=lane)

    @precondition(lambda self: any(self._rollouts()))
    @rule(pick=st.integers(0, 8), kind=st.sampled_from(["append", "inject"]), cut=st.booleans())
    def append_early(self, pick, kind, cut):
        """Append while a step runs, and optionally truncate the step."""
        found = [(peer, asked) for peer, asked in self._rollouts() if peer.is_at("starts", asked.lane)]
        if not found:
            return
        peer, asked = found[pick % len(found)]
        assert asked.response_id is not None
        asked.spoken = True
        peer.connection.generate(*CALL, *CALL, lane=asked.lane)
        self._append(peer, asked.response_id, asked.open_calls[:1], kind)
        if cut:
            peer.connection.finish(lane=asked.lane, reason="max_output_tokens")

    def _rollouts(self) -> Iterator[tuple[Peer, Pending]]:
        for peer in self.peers:
            if peer.connection.close is None:
                heads = (asked for asked in peer._heads() if asked.request.rollout and asked.response_id)
                yield from ((peer, asked) for asked in heads)

    def _append(self, peer: Peer, target: str, calls: list[str], kind: str) -> None:
        items = []
        for call in calls:
            self.asked += 1
            items.append(call_output(call, f"answer {self.asked}"))
        peer.append(target, items, kind)

    def _answer(self, peer: Peer, lane: str | None) -> None:
        """Append all outputs that a paused rollout waits for."""
        asked = peer.head(lane)
        assert asked.response_id is not None
        self._append(peer, asked.response_id, asked.open_calls, "append")

    def _steer(self, peer: Peer, target: str, text: str) -> None:
        self.asked += 1
        self.quiet_steps += 1
        peer.steer(target, f"steer {self.asked} {text}")

    # Engines and stores.

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8), words=st.sampled_from(ANSWERS))
    def work(self, pick, words):
        """Do the next piece of work of one turn."""
        peer, lane = self._pick(pick)
        self.quiet_steps += 1
        if lane in peer.paused:
            self._answer(peer, lane)
        elif peer.is_at("loads", lane):
            peer.load(lane)
        elif peer.is_at("saves", lane):
            peer.connection.save(lane)
        elif lane in peer.calling:
            self._end_call(peer, lane, pick)
        elif not peer.is_at("starts", lane):
            self._begin(peer, lane, 1000 * (pick % 3))
        elif peer.connection.job(lane).offer.forbidden:
            peer.connection.finish(*words, Text("in short"), lane=lane)
        elif peer.connection.job(lane).generate and not peer.head(lane).spoken:
            peer.head(lane).spoken = True
            if peer.head(lane).request.approval:
                words = HOSTED_ANSWERS[(pick + len(words)) % len(HOSTED_ANSWERS)]
            peer.connection.generate(*words, *words, lane=lane)
        else:
            peer.connection.finish(lane=lane)

    def _begin(self, peer: Peer, lane: str | None, tokens: int) -> None:
        """Do the work before a turn's job."""
        with peer.evicting_only_evictable():
            if peer.is_at("resolves", lane):
                peer.connection.find_servers(lane)
            elif peer.is_at("listings", lane):
                peer.connection.list_tools(lane)
            elif peer.is_at("checks", lane):
                peer.check(lane)
            elif peer.is_at("claims", lane):
                peer.claim(lane)
            elif peer.is_at("weighs", lane):
                peer.connection.weigh(tokens, lane)

    def _end_call(self, peer: Peer, lane: str | None, pick: int) -> None:
        """End one of the hosted calls of a lane."""
        calls = [
            call_id for call_id, action in peer.connection.calls.items() if action.turn.asked.lane == lane
        ]
        self.asked += 1
        error = ProtocolError(1, f"error {self.asked}") if pick % 5 == 0 else None
        peer.connection.end_call(calls[pick % len(calls)], f"result {self.asked}", error)

    @precondition(lambda self: any(peer.connection.compressions for peer in self.peers))
    @rule(count=st.sampled_from([None, None, None, 1, 0]))
    def compress(self, count):
        """Items of old responses are compressed, or some of them."""
        peer = next(peer for peer in self.peers if peer.connection.compressions)
        peer.connection.compress(count)

    @precondition(lambda self: any(peer.connection.calls for peer in self.peers))
    @rule(pick=st.integers(0, 8), ends=st.booleans())
    def go_on_with_a_call(self, pick, ends):
        """A hosted call ends, while the model writes or after that, or reports progress."""
        running = [(peer, call_id) for peer in self.peers for call_id in peer.connection.calls]
        peer, call_id = running[pick % len(running)]
        if ends:
            self._end_call(peer, peer.connection.calls[call_id].turn.asked.lane, pick)
        else:
            peer.connection.report_progress(call_id)

    @rule(
        place=st.sampled_from(ENDPOINTS),
        pick=st.integers(0, 8),
        request=st.sampled_from(HOSTED),
        until=st.sampled_from(["calls", "end", "failure"]),
    )
    def call_hosted_tools(self, place, pick, request, until):
        """Continue a response of the same client, or none, up to hosted calls or approval requests, to its
        end, or to a failure of the engine beside its calls."""
        own = self._own(place[0])
        self._ask(place, own[-1 - pick // 2 % len(own)] if own and pick % 2 else None, request)
        who, lane = place
        peer = self.peers[who]
        if not peer.is_at("resolves", lane) or peer.head(lane).serial != str(self.asked):
            return
        while peer.is_at("resolves", lane) or peer.is_at("listings", lane):
            self._begin(peer, lane, 0)
        words = HOSTED_ANSWERS[pick % len(HOSTED_ANSWERS)]
        if until == "failure" and peer.is_at("starts", lane):
            peer.connection.generate(*words, lane=lane)
            with peer.evicting_only_evictable():
                peer.connection.fail(lane)
        else:
            self._speak(peer, lane, words)
        while until == "end" and lane in peer.calling:
            self._end_call(peer, lane, pick)
        if until == "end":
            self._speak(peer, lane, [Text("done")])
        if peer.is_at("saves", lane):
            peer.connection.save(lane)

    def _speak(self, peer: Peer, lane: str | None, words: list[Delta]) -> None:
        """If a job runs on the lane, end it with these words."""
        if peer.is_at("starts", lane):
            peer.connection.finish(*words, lane=lane)

    @precondition(lambda self: any(made.asked for made in self.model.made.values()))
    @rule(pick=st.integers(0, 8), request=st.sampled_from(HOSTED), lane=st.sampled_from(LANES[:3]))
    def answer_requests(self, pick, request, lane):
        """Approve or deny the calls that a response asks for, perhaps a second time."""
        found = [
            (who, response_id)
            for who in range(3)
            for response_id in self._own(who)
            if self.model.made[response_id].asked
        ]
        if found:
            who, response_id = found[-1 - pick % len(found)]
            self._ask((who, lane), response_id, request)

    @precondition(lambda self: self.model.made)
    @rule(
        place=st.sampled_from(ENDPOINTS),
        pick=st.integers(0, 5),
        request=st.sampled_from([*RESENT, *HOSTED, *HOSTED]),
    )
    def resend_as_sent(self, place, pick, request):
        """Send the items of one of the latest responses as they were on the wire, hosted calls included."""
        made = [each for each in self.model.made.values() if not each.asked and _is_whole(each.sent)][-6:]
        if made:
            chosen = made[-1 - pick % len(made)]
            answers = [call_output(call) for call in chosen.open_calls]
            self._ask(
                place, None, request, history=[*chosen.sent, *answers], told=[*chosen.context, *answers]
            )

    @precondition(lambda self: any(peer.connection.over for peer in self.peers))
    @rule(pick=st.integers(0, 8), back=st.integers(0, 5))
    def report_late(self, pick, back):
        """What has ended or was cancelled lately reports once more: clients notice nothing."""
        peers = [peer for peer in [*self.peers, *self.disconnected] if peer.connection.over]
        connection = peers[pick % len(peers)].connection
        assert connection.report_late(-1 - back % len(connection.over)) == []

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8))
    def fail_a_steered_response(self, pick):
        peer, lane = self._pick(pick)
        asked = peer.head(lane)
        if peer.is_at("starts", lane) and asked.response_id is not None:
            self._steer(peer, asked.response_id, "")
            with peer.evicting_only_evictable():
                peer.connection.fail(lane)

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8))
    def truncate(self, pick):
        peer, lane = self._pick(pick)
        if peer.is_at("starts", lane) and peer.connection.job(lane).generate:
            steered = peer.connection.job(lane).stop.asked
            deltas = [] if steered else [Text("half")]
            peer.connection.finish(*deltas, lane=lane, reason="steered" if steered else "max_output_tokens")

    @rule(who=st.integers(0, 2))
    def drain_one(self, who):
        """Do all work of one connection."""
        self._drain(self.peers[who])

    @precondition(lambda self: self.quiet_steps > 3 and any(self._at_work()))
    @rule(pick=st.integers(0, 8))
    def fail(self, pick):
        peer, lane = self._pick(pick)
        if lane in peer.paused or lane in peer.calling:
            return  # no work is in progress that could fail
        self.quiet_steps = 0
        peer.head(lane).loading = any(turn.asked.lane == lane for turn in peer._beginning())
        peer.head(lane).unsaved = peer.is_at("saves", lane)
        with peer.evicting_only_evictable():
            peer.connection.fail(lane)

    # The end of connections.

    @precondition(lambda self: self.quiet_steps > 8)
    @rule(who=st.integers(0, 2))
    def disconnect(self, who):
        self.quiet_steps = 0
        self._replace(who)

    @precondition(lambda self: any(peer.connection.saves for peer in self.disconnected))
    @rule()
    def save_after_a_disconnect(self):
        """A save in progress at a disconnect finishes; other connections can continue the response."""
        peer = next(peer for peer in self.disconnected if peer.connection.saves)
        turn = next(iter(peer.connection.saves))
        assert turn.response is not None
        before = len(peer.connection.events)
        peer.connection.save(turn.asked.lane)
        assert len(peer.connection.events) == before
        asked = peer.queues[turn.asked.lane].popleft()
        asked.done = dict(enumerate(json.loads(bytes(item)) for item in turn.response.output))
        self.model.finish(peer, asked, turn.response.status, stored=True)
        # Its client has not seen the end of its hosted calls.
        state = self.server.store[peer.tenant, turn.response.id]
        context = (*state.context(), *state.unread)
        self.model.made[turn.response.id].context = [json.loads(item.raw) for item in context]

    @precondition(lambda self: self.quiet_steps > 8)
    @rule(who=st.integers(0, 2))
    def wind_down(self, who):
        self.quiet_steps = 0
        peer = self._peer(who)
        peer.end_until(self.server.now + 20.0)
        peer.connection.end(Unavailable("The server is shutting down."), grace_s=20.0)

    @precondition(lambda self: self.quiet_steps > 4)
    @rule(seconds=st.sampled_from([15, 15, 600]))
    def tick(self, seconds):
        self.server.now += seconds
        self.server.known.sweep(self.server.now)
        for peer in self.peers:
            if self.server.now - peer.opened_at >= LIMITS["max_age_s"]:
                peer.end_until(self.server.now + LIMITS["age_grace_s"])
            peer.connection.tick()
            assert seconds < LIMITS["rollout_wait_s"] or not peer.paused, "a rollout waits forever"
            in_time = peer.deadline is None or self.server.now < peer.deadline
            connection = peer.connection
            created = connection.listings or connection.starts or connection.calls
            at_work = bool(created or peer._beginning())
            assert in_time or not at_work, "a turn runs after the grace period"

    # Invariants.

    @invariant()
    def known_contexts_are_counted_and_within_their_limits(self):
        known = self.server.known
        held = set()
        for contexts in known._by_tenant.values():
            for context in contexts.values():
                node: KnownContext | None = context
                while node is not None and node not in held:
                    held.add(node)
                    node = node.parent
        assert known.used_bytes == sum(context.size_bytes for context in held)
        assert known.used_bytes <= LIMITS["recognised_bytes"]
        assert sum(map(len, known._keys.values())) == len(known)

    @invariant()
    def connections_stay_within_their_limits(self):
        for peer in self.peers:
            session = peer.connection.session
            assert session.in_flight == len(peer.busy) <= LIMITS["max_in_flight"]
            assert len(set(peer.busy)) == len(peer.busy), "two responses on one lane"
            assert session.waiting == peer.unanswered - session.in_flight
            assert session.waiting <= LIMITS["max_queued"]

    @invariant()
    def cached_bytes_are_counted_and_within_their_limits(self):
        totals = {"alice": 0, "bob": 0}
        for peer in self.peers:
            cache = peer.connection.cache
            programs = peer.connection.session.turns._programs.values()
            pinned = [program._pinned[1] for program, _ in programs if program._pinned is not None]
            held = {node for state in [*cache.states(), *pinned] for node in state.chain()}
            assert cache.used_bytes == sum(cache._retention._sizes[node] for node in held)
            compression = cache._compression
            states = compression.states
            assert states <= held
            assert compression.compressed_bytes == sum(node.compressed_bytes for node in states)
            assert compression.item_bytes == sum(node.item_bytes for node in states)
            # What running turns continue, and what is about to be compressed, stays.
            assert not cache._own.exceeded or not len(cache) or peer.connection.compressions
            totals[peer.tenant] += cache.used_bytes
            peer.evictions_before = peer.evictions
        for tenant, total in totals.items():
            scope, process = self.server.scopes.of(tenant)
            assert scope.used_bytes == total
            assert not scope.exceeded or scope.oldest() is None
        assert process.used_bytes == sum(totals.values())
        assert not process.exceeded or process.oldest() is None

    @invariant()
    def request_bytes_count_while_requests_wait_or_run(self):
        totals = {"alice": 0, "bob": 0}
        for peer in self.peers:
            session = peer.connection.session
            held = session.shared.charges._held
            turns = session.running_and_queued() if peer.connection.close is None else []
            for turn in turns:
                is_counted = not turn.asked.follows or turn not in session.shared.successors.in_input
                taken = turn.asked.size_bytes if is_counted else 0
                assert held.get(turn, 0) >= taken, "a request is not counted"
            steers = [turn.steers for turn in turns if turn.steers is not None]
            if turns:
                steers += session.shared.successors.in_input.values()
            steers += session.shared.successors.waiting.values()
            assert {each: each.size_bytes for each in steers} == {
                holder: size for holder, size in held.items() if isinstance(holder, Steers)
            }
            growing = session.shared.growing_outputs.growing.values()
            assert held.keys() <= {*turns, *steers, *growing}, "a request is counted after its end"
            pinned = session.shared.charges._pinned
            assert pinned.keys() <= held.keys(), "a state is pinned after the end of its turn"
            nodes = {node for state in pinned.values() for node in state.chain()}
            totals[peer.tenant] += sum(held.values()) + sum(node.size_bytes for node in nodes)
        assert {tenant: self.server.requests.used_by(tenant) for tenant in totals} == totals
        assert self.server.requests.used_bytes == sum(totals.values())

    @invariant()
    def prefills_continue_what_their_client_knows(self):
        for peer in self.peers:
            assert len(peer.connection.prefills) <= len(LANES)
            for target, action in peer.connection.prefills.items():
                job = action.prefill.job
                assert (job.tenant, job.generate) == (peer.tenant, False)
                assert job.parent is not None
                assert job.parent.id == target
                growing = {item.call_id for item in job.input if item.call_id is not None}
                calls = [
                    item for item in job.context() if item.call_id in growing and "output" not in item.type
                ]
                assert len(calls) == len(growing), "an output without its call"
                cache = peer.connection.cache
                assert target not in cache or cache.is_latest(target), "it will not be continued"

    @invariant()
    def calls_end_with_their_responses(self):
        for peer in self.peers:
            running = list(peer.connection.session.shared.lanes.running())
            for call in peer.connection.calls.values():
                assert call.turn in running, "a hosted call of a response that has ended"
                assert not call.turn.is_closed, "a hosted call of a response that is complete"

    @invariant()
    def caches_hold_responses_of_their_own_connection(self):
        for peer in self.peers:
            for response_id in peer.cached():
                assert self.model.made[response_id].peer is peer

    @invariant()
    def no_steer_is_lost(self):
        for peer in self.peers:
            assert not peer.owed, "a steer was lost"
            for target, steers in peer.waiting.items():
                assert peer.pending >= steers.keys(), f"no pending event for {target}"

    # The end.

    def teardown(self):
        for peer in self.peers:
            self._drain(peer)
            self.connections_stay_within_their_limits()
            assert not peer.unanswered, "a create was never answered"
            self.no_steer_is_lost()
            peer.connection.order.finish()
        self.cached_bytes_are_counted_and_within_their_limits()
        for peer in self.disconnected:
            peer.connection.order.finish(abandoned=True)
            assert peer.connection.cache.used_bytes == 0
        self.request_bytes_count_while_requests_wait_or_run()
        for peer in self.peers:
            peer.connection.session.closed()
        assert self.server.requests.used_bytes == 0, "bytes are left at the end"

    def _drain(self, peer: Peer) -> None:
        connection = peer.connection
        while peer.busy:
            for lane in peer.paused:
                self._answer(peer, lane)
            for turn in list(connection.loads):
                peer.load(turn.asked.lane)
            for turn in [*peer._beginning(), *connection.listings]:
                if turn not in connection.loads:
                    self._begin(peer, turn.asked.lane, 1000)
            for call_id in list(connection.calls):
                if call_id in connection.calls:
                    connection.end_call(call_id)
            for turn in list(connection.starts):
                connection.finish(lane=turn.asked.lane)
            for turn in list(connection.saves):
                connection.save(turn.asked.lane)

    # Implementation.

    def _peer(self, who: int) -> Peer:
        if self.peers[who].connection.close is not None:
            self._replace(who)
        return self.peers[who]

    def _replace(self, who: int) -> None:
        peer = self.peers[who]
        saving = {turn.asked.lane for turn in peer.connection.saves}
        kept = [asked for asked in peer._heads() if asked.request.rollout and asked.request.store]
        # Rollouts without a finished step are dropped.
        saving |= {asked.lane for asked in kept if asked.paused or asked.starts > 1}
        saving |= {asked.lane for asked in kept if asked.lane in peer.calling}
        peer.connection.hang_up()
        assert not peer.connection.calls
        assert not peer.connection.starts
        assert not peer.connection.prefills
        assert not peer._beginning()
        assert {turn.asked.lane for turn in peer.connection.saves} == saving
        self.disconnected.append(peer)
        self.peers[who] = Peer(self.model, self.server, peer.tenant)

    def _pick(self, pick: int) -> tuple[Peer, str | None]:
        found = list(self._at_work())
        return found[pick % len(found)]

    def _at_work(self) -> Iterator[tuple[Peer, str | None]]:
        return ((peer, lane) for peer in self.peers for lane in peer.busy)


TestConnections = pytest.mark.timeout(900)(Connections.TestCase)  # 4,800 steps, on a machine that may be busy
TestConnections.settings = settings(
    max_examples=120, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
