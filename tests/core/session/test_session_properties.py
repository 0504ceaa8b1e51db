"""Any interleaving of several connections, against a model that is too simple to be wrong.

Three connections, two of one tenant and one of another, share a store and the bounds on memory. The machine
sends creates and does the work of engine and store in any order it likes. The model knows only what a client
could know: which creates and steers were sent, and what the contexts of finished responses are. It holds
every answer against that, and after each step the books of the caches against what they really hold. What was
accepted as a steer is in the context of exactly one response, or has been given back once; so is what was
appended to a rollout or injected into it.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipring.core.betas import Betas
from slipring.core.generation import CallArguments, CallStarted, Delta, Job, Text, Thought
from slipring.core.session.actions import Start
from slipring.core.turn.steering import Steers
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError, ContextLengthExceeded, InvalidRequest, Unavailable
from tests.core.stage import Json, Stage, World, call_output, context_of, message

LIMITS = {
    "max_in_flight": 3,
    "max_lanes": 3,
    "max_queued": 6,
    "max_steers": 3,
    "connection_cache_bytes": 8_000,  # about three responses
    "tenant_cache_bytes": 11_000,
    "process_cache_bytes": 14_000,
    "rollout_wait_s": 100.0,
    "max_age_s": 1_000.0,
    "age_grace_s": 20.0,
}
LANES = [None, "a", "b", "c", "one_too_many"]
PLACES = [(who, lane) for who in range(3) for lane in LANES]
REFUSED_ON_ARRIVAL = {"rate_limit_exceeded", "websocket_stream_limit_reached"}
REFUSED_AT_THE_END = {"websocket_connection_limit_reached", "service_unavailable"}
BAD_BODIES: list[Json] = [{"temperature": "hot"}, {"stream": False}]
TOO_LONG: Json = {"seed": 666}
"""The engine reads the job and refuses it."""
UNBEARABLE = "unbearable"
"""The same, of what was added to the response before."""
MEANINGLESS = "meaningless"
"""A grammar that cannot be compiled."""
IN_GRAMMAR = "tools[0].format.definition"
UNSERVABLE: list[Json] = [{"model": "nobody"}, {"background": True}, TOO_LONG]
CALL: list[Delta] = [CallStarted(kind="function", name="f"), CallArguments("{}")]
MANAGED: list[Json] = [{"type": "compaction", "compact_threshold": 1000}]
SPEECH: list[list[Delta]] = [[Text("words")], [Thought("hm")], CALL]


class Request(NamedTuple):
    """What is asked for, apart from where and after what."""

    store: bool
    generate: bool = True
    outputs: str = "all"
    fault: Json = {}  # noqa: RUF012
    managed: bool = False
    """Whether its context is to be compacted, should the engine find it too long."""
    rollout: bool = False
    grammar: str = ""
    """Of a tool that it defines, if it does."""


ROLLOUTS = [Request(store=False, rollout=True), Request(store=True, rollout=True)]
DEFINING = [
    Request(store=True, grammar="good"),
    Request(store=False, grammar="good too", managed=True),
    Request(store=False, grammar="good", rollout=True),
]
GOOD_REQUESTS = [
    *(Request(store=False), Request(store=True), Request(store=True, managed=True)),
    *ROLLOUTS,
    *DEFINING,
]
REQUESTS = [
    *(2 * GOOD_REQUESTS),
    Request(store=False, generate=False),
    Request(store=True, generate=False, outputs="none"),
    Request(store=True, outputs="none"),
    Request(store=False, outputs="orphan"),
    *(Request(store=False, fault=fault) for fault in (*BAD_BODIES, *UNSERVABLE)),
    Request(store=False, grammar=MEANINGLESS),
    Request(store=True, grammar=MEANINGLESS, rollout=True),
]


ODD_REQUESTS = REQUESTS[2 * len(GOOD_REQUESTS) :][:4]


def tools_of(request: Request) -> list[Json]:
    format = {"type": "grammar", "syntax": "regex", "definition": request.grammar}
    return [{"type": "custom", "name": "tool", "format": format}] if request.grammar else []


@dataclass(eq=False)
class Asked:
    """A create that was sent and not yet answered in full."""

    serial: str
    lane: str | None
    previous: str | None
    input: list[Json]
    request: Request
    certain: bool
    """Whether its parent is in memory and bound at once, so that nothing can take it away."""
    response_id: str | None = None
    loading: bool = False
    spoken: bool = False
    output: list[Json] = field(default_factory=list)
    left: list[Json] | None = None
    """What a compaction has left of its context."""
    steers: dict[str, str] = field(default_factory=dict)
    """What was added to it and accepted, by its id."""
    follows: dict[str, str] = field(default_factory=dict)
    """What was added to its parent, if that is why it is made."""
    held: list[list[Json]] = field(default_factory=list)
    """What was appended while its model was speaking."""
    paused: bool = False

    @property
    def has_steps(self) -> bool:
        """Whether it has gone on behind calls."""
        return any(item["type"] == "function_call_output" for item in self.output)

    @property
    def open_calls(self) -> list[str]:
        """Of those that it has told of, the ones that nobody has answered."""
        answers = [item for item in self.output if item["type"] == "function_call_output"]
        answered = {item["call_id"] for item in [*answers, *(item for held in self.held for item in held)]}
        calls = [item["call_id"] for item in self.output if item["type"] == "function_call"]
        return [call for call in calls if call not in answered]


@dataclass(eq=False)
class Made:
    """A finished response, as a client knows it."""

    peer: "Peer"
    lane: str | None
    context: list[Json]
    open_calls: list[str]
    stored: bool
    status: str

    def is_for(self, peer: "Peer") -> bool:
        """Whether this connection may continue from it at all."""
        return self.peer is peer or (self.stored and self.peer.tenant == peer.tenant)


class Model:
    """What all clients together know."""

    def __init__(self) -> None:
        self.made: dict[str, Made] = {}
        self.ids: list[str] = []
        """Every response id that anybody has seen, the newest last."""

    def context(self, asked: Asked) -> list[Json]:
        """What an engine must be given for a create that was accepted."""
        if asked.left is not None:
            return asked.left
        past = self.made[asked.previous].context if asked.previous is not None else []
        return past + asked.input + (asked.output if asked.request.rollout else [])

    def outcomes(self, peer: "Peer", asked: Asked) -> set[str | None]:
        """What may become of a create whose turn has come: the code or text of a refusal, or None."""
        if asked.request.fault in BAD_BODIES:
            return {*asked.request.fault}
        may: set[str | None] = set()
        parent = self.made.get(asked.previous or "")
        if asked.previous is not None:
            reachable = parent is not None and parent.is_for(peer)
            if not reachable or not (parent.stored or asked.certain):
                may.add("previous_response_id")
            if not reachable:
                return may
        open_calls = parent.open_calls if parent is not None else []
        may.add(self._objection(asked, open_calls))
        return may

    def _objection(self, asked: Asked, open_calls: list[str]) -> str | None:
        if "model" in asked.request.fault:
            return "model"
        left = list(open_calls)
        for item in asked.input:
            if "call_id" not in item:
                continue
            if item["call_id"] not in left:
                return f"No tool call found for function call output with call_id {item['call_id']}."
            left.remove(item["call_id"])
        if left and asked.request.generate:
            return f"No tool output found for function call {left[0]}."
        if asked.request.fault == TOO_LONG:
            return "input"
        if asked.request.grammar == MEANINGLESS:
            return IN_GRAMMAR
        return "background" if asked.request.fault else None

    def finish(self, peer: "Peer", asked: Asked, status: str, *, stored: bool) -> None:
        """A response can be continued from now on."""
        assert asked.response_id is not None
        parent = self.made.get(asked.previous or "")
        answered = {item["call_id"] for item in asked.input if "call_id" in item}
        calls = [call for call in (parent.open_calls if parent else []) if call not in answered]
        for item in asked.output:
            cut_off = status == "incomplete" and item is asked.output[-1]
            if item["type"] == "function_call" and not cut_off:
                calls.append(item["call_id"])
            elif item["type"] == "function_call_output":
                calls.remove(item["call_id"])
        context = self.context(asked)
        if not asked.request.rollout:
            context += [item for item in asked.output if item["type"] != "compaction"]
        self.made[asked.response_id] = Made(peer, asked.lane, context, calls, stored, status)


def refuse_too_long(job: Job) -> ApiError | None:
    too_long = job.settings.seed == TOO_LONG["seed"] or any(UNBEARABLE.encode() in i.raw for i in job.input)
    return ContextLengthExceeded(2, 1) if too_long else None


class Peer:
    """One connection and its client, who checks every answer."""

    def __init__(self, model: Model, world: World, tenant: str) -> None:
        self.model = model
        self.tenant = tenant
        self.stage = Stage(
            world,
            tenant,
            on_event=self._see,
            on_start=self._check_job,
            refuses=refuse_too_long,
            betas=Betas(rollout=True, inject=True),
        )
        self.opened_at = world.now
        self.deadline: float | None = None
        """Set when the connection is about to end."""
        self.queues: dict[str | None, deque[Asked]] = {lane: deque() for lane in LANES}
        self.lanes: set[str | None] = {None}
        self.refusal: str | None = None
        self.evictable: set[str] = set()
        """Parents whose continuation failed on their own lane."""
        self.evictions_before = self.evictions
        self.waiting: dict[str, dict[str, str]] = {}
        """Steers that wait for what the client owes their response."""
        self.pending: set[str] = set()
        """Those of which that was said."""
        self.owed: set[str] = set()
        """Steers that have to be given back at once."""
        self.unbearable: set[str] = set()
        """Responses to which something was added that no engine takes."""
        self.settled: set[str] = set()
        """Steers that are in a context or were given back."""
        self.appended: set[str] = set()
        """What was appended and accepted, and is neither in a response nor was given back yet."""
        self.given_back: list[Json] = []
        """What else was not accepted."""

    @property
    def unanswered(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def evictions(self) -> int:
        """How many responses the bounds on memory have cost so far."""
        return sum(scope.evictions for scope in self.stage.cache._scopes)

    @property
    def busy(self) -> list[str | None]:
        """The lanes on which something is being done."""
        stage = self.stage
        beginning = (*stage.loads, *stage.checks, *stage.weighs)
        working = [turn.lane for turn in (*beginning, *stage.starts, *stage.saves)]
        return working + self.paused

    @property
    def paused(self) -> list[str | None]:
        """The lanes on which a rollout waits for its client."""
        return [head.lane for head in self._heads() if head.paused and not self.is_at("saves", head.lane)]

    def remembered(self) -> set[str]:
        return {response_id for response_id in self.model.ids if response_id in self.stage.cache}

    def ask(self, asked: Asked) -> None:
        """Send a create. It takes its place in the queue unless it is refused on arrival."""
        request, queue = asked.request, self.queues[asked.lane]
        expected = self._refusal_on_arrival(asked.lane)
        self.refusal = None
        queue.append(asked)
        with self.forgetting_only_evictable():
            self.stage.create(
                asked.lane,
                asked.previous,
                input=asked.input,
                metadata={"serial": asked.serial},
                store=request.store,
                generate=request.generate,
                context_management=MANAGED if request.managed else None,
                rollout=request.rollout,
                tools=tools_of(request),
                **request.fault,
            )
        assert self.refusal == expected
        if expected is not None:
            assert queue.pop() is asked

    def steer(self, target: str, text: str) -> None:
        """Add something to a response, whoever's it may be."""
        expected = self._answer_to_steer(target)
        event = self.stage.steer(target, text)
        assert event.get("error", {}).get("code") == expected
        assert event["steer"]["previous_response_id"] == target
        if expected is None:
            asked = next(asked for asked in self._heads() if asked.response_id == target)
            asked.steers[event["steer"]["id"]] = text
        else:
            assert event["steer"]["input"] == text

    def _answer_to_steer(self, target: str) -> str | None:
        for asked in self._heads():
            if asked.response_id == target:
                if not asked.request.generate or asked.request.managed:
                    return "steering_not_supported"
                if self.ending:
                    return "response_not_active"
                return "too_many_pending_steers" if len(asked.steers) >= LIMITS["max_steers"] else None
        if target not in self.stage.cache:
            return "response_not_found"
        is_complete = self.model.made[target].status == "completed"
        return "response_already_completed" if is_complete else "response_not_active"

    def append(self, target: str, items: list[Json], kind: str) -> None:
        """Send what a response may wait for, whoever's it may be."""
        asked = next((asked for asked in self._heads() if asked.response_id == target), None)
        expected = self._answer_to_append(asked, target, items)
        frame = self.stage.append_frame(target, *items, kind=kind)
        if expected is None and self.rolled_bytes + len(frame) > LIMITS["connection_cache_bytes"]:
            expected = "too_much_pending_input"
        self.given_back = []
        if expected is None:
            assert asked is not None
            self.appended.update(item["output"] for item in items)
            asked.held.append(items)
            asked.paused = asked.paused and bool(asked.open_calls)
            asked.spoken = asked.spoken and asked.paused
        self.stage.receive(frame)
        if expected is None:
            assert not self.given_back
            return
        (event,) = self.given_back
        assert (event["response_id"], event["input"]) == (target, items)
        if kind == "append":
            assert event["error"]["code"] == expected
        else:
            is_over = expected == "response_already_completed"
            assert event["error"]["code"] == (expected if is_over else "response_not_found")

    @property
    def rolled_bytes(self) -> int:
        """What its rollouts hold. Nobody can know that from outside."""
        rollouts = [turn.rollout for turn in self.stage.session._lanes.running() if turn.rollout]
        return sum(each.size_bytes + each.held_bytes for each in rollouts)

    def _answer_to_append(self, asked: Asked | None, target: str, items: list[Json]) -> str | None:
        if asked is None:
            return "response_already_completed" if target in self.stage.cache else "response_not_found"
        if not asked.request.rollout:
            return "append_not_supported"
        if self.is_at("saves", asked.lane):
            return "response_already_completed"
        calls = [item["call_id"] for item in items]
        is_owed = set(calls) <= set(asked.open_calls) and len(set(calls)) == len(calls)
        return None if is_owed else "invalid_input"

    def _heads(self) -> list[Asked]:
        return [queue[0] for queue in self.queues.values() if queue]

    @contextmanager
    def forgetting_only_evictable(self) -> Iterator[None]:
        """Where nothing is added, a parent is forgotten by a failure on its own lane and by nothing else."""
        before = self.remembered()
        yield
        assert before - self.remembered() <= self.evictable

    def begins_at_once(self, lane: str | None) -> bool:
        return not self.queues[lane] and len(self.busy) < LIMITS["max_in_flight"]

    def _refusal_on_arrival(self, lane: str | None) -> str | None:
        """Two bounds answer without waiting for their place in the lane."""
        if lane not in self.lanes and len(self.lanes) > LIMITS["max_lanes"]:
            return "websocket_stream_limit_reached"
        self.lanes.add(lane)
        waiting = self.unanswered - len(self.busy)
        if waiting >= LIMITS["max_queued"] and not self.begins_at_once(lane):
            return "rate_limit_exceeded"
        return None

    def head(self, lane: str | None) -> Asked:
        return self.queues[lane][0]

    def is_at(self, work: str, lane: str | None) -> bool:
        return any(turn.lane == lane for turn in getattr(self.stage, work))

    def load(self, lane: str | None) -> None:
        self.head(lane).loading = True
        self.stage.load(lane)

    @property
    def ending(self) -> bool:
        return self.deadline is not None

    def end_until(self, deadline: float) -> None:
        """Turns that have begun may go on until then; those that only wait may not begin."""
        if self.deadline is None:
            self.deadline = deadline
            begun = [self.head(turn.lane) for turn in self._beginning()]
            taken = {asked.previous for asked in begun if asked.request.generate and self._waits_for(asked)}
            for target in self.waiting.keys() - taken:
                self.owed.update(self.waiting[target])
        for turn in self._beginning():
            self.head(turn.lane).loading = True

    def _beginning(self) -> list[Turn]:
        """Turns that have begun, and are no responses yet."""
        return [*self.stage.loads, *self.stage.checks, *self.stage.weighs]

    def check(self, lane: str | None) -> None:
        """Compile what a request defines."""
        if self.head(lane).request.grammar == MEANINGLESS:
            self.stage.fail(lane, InvalidRequest("It means nothing.", param=IN_GRAMMAR))
        else:
            self.stage.check(lane)

    # Checking.

    def _see(self, event: Json) -> None:
        lane, kind = event.get("stream_id"), event["type"]
        if kind == "error":
            self._see_error(event, lane)
        elif kind == "response.created":
            self._see_created(event["response"], lane)
        elif kind == "response.in_progress":
            assert self.head(lane).request.generate, "a warmup is never in progress"
        elif kind == "response.output_item.done":
            self._see_item(event["item"], self.head(lane))
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
            asked.input = [*map(message, added.values()), *asked.input]
            self._settle(added)
        self._settle(asked.follows)
        asked.follows = {}
        asked.response_id = response["id"]
        self.model.ids.append(response["id"])

    def _see_item(self, item: Json, asked: Asked) -> None:
        asked.output.append(item)
        if item["type"] == "compaction":
            self._see_compaction(item, asked)
        elif item["type"] == "function_call_output":
            self._see_appended(item, asked)

    def _see_pause(self, event: Json, asked: Asked) -> None:
        assert not self.ending, "paused though the connection ends"
        asked.paused = True
        assert [stub["call_id"] for stub in event["required_input"]] == asked.open_calls

    def _see_appended(self, item: Json, asked: Asked) -> None:
        """It is part of the response from now on."""
        self.appended.remove(item["output"])
        first = asked.held[0]
        sent = first.pop(0)
        assert (sent["call_id"], sent["output"]) == (item["call_id"], item["output"])
        if not first:
            asked.held.pop(0)
        asked.spoken = False

    def _see_append_failed(self, event: Json, lane: str | None) -> None:
        """It was refused, or accepted before, and the response is over."""
        outputs = {item["output"] for item in event["input"]}
        queue = self.queues[lane]
        if queue and event["input"] in queue[0].held and outputs <= self.appended:
            self.appended -= outputs
            queue[0].held.remove(event["input"])
        else:
            self.given_back.append(event)

    def _see_compaction(self, item: Json, asked: Asked) -> None:
        """What is left begins anew, and still holds what the client has just said."""
        meant = self.stage.world.means.seal.open(self.tenant, item["encrypted_content"])
        asked.left = [json.loads(each.raw) for each in meant]
        assert asked.input[-1] in asked.left

    def _see_terminal(self, response: Json, lane: str | None) -> None:
        asked = self.queues[lane].popleft()
        assert response["id"] == asked.response_id
        assert not asked.held, "neither in the response nor given back"
        asked.paused = False
        if response["status"] == "failed":
            self._check_eviction(asked)
            self.owed.update(asked.steers)
            if self._waits_for(asked):
                self.owed.update(self.waiting[asked.previous or ""])
        else:
            assert response["output"] == asked.output
            self._check_memory(response["id"], lane)
            self.model.finish(self, asked, response["status"], stored=response["store"])
            if asked.steers:
                self._expect_successor(asked, response["id"])

    # Steers.

    def _expect_successor(self, asked: Asked, response_id: str) -> None:
        if self.ending:
            self.owed.update(asked.steers)
        elif self.model.made[response_id].open_calls:
            self.waiting[response_id] = asked.steers
        else:
            successor = Asked(
                serial=asked.serial,
                lane=asked.lane,
                previous=response_id,
                input=list(map(message, asked.steers.values())),
                request=asked.request,
                certain=True,
                follows=asked.steers,
            )
            self.queues[asked.lane].appendleft(successor)

    def _waits_for(self, asked: Asked) -> bool:
        """Whether steers wait for a create like this one."""
        return asked.previous in self.waiting and self.model.made[asked.previous].lane == asked.lane

    def _settle(self, steers: Iterable[str]) -> None:
        assert self.settled.isdisjoint(steers), "committed or given back twice"
        self.settled.update(steers)

    def _see_steer(self, kind: str, event: Json, lane: str | None) -> None:
        if kind == "response.steer.pending":
            self._see_pending(event)
        elif kind == "response.steer.failed" and "id" in event["steer"]:
            self._see_given_back(event["steer"], lane)

    def _see_pending(self, event: Json) -> None:
        target, steer = event["steer"]["previous_response_id"], event["steer"]["id"]
        assert steer in self.waiting[target]
        assert steer not in self.pending, "said twice"
        self.pending.add(steer)
        required = [stub["call_id"] for stub in event["required_input"]]
        assert required == self.model.made[target].open_calls

    def _see_given_back(self, steer: Json, lane: str | None) -> None:
        target, steer_id = steer["previous_response_id"], steer["id"]
        self._settle([steer_id])
        queue = self.queues[lane]
        if steer_id in self.waiting.get(target, {}):
            assert self.waiting[target].pop(steer_id) == steer["input"]
            if UNBEARABLE in steer["input"]:
                self.unbearable.add(target)
            if not self.waiting[target]:
                del self.waiting[target]
        elif queue and steer_id in queue[0].follows:
            # A successor that cannot be: nobody has asked for it, and nobody is told of it.
            assert queue[0].follows.pop(steer_id) == steer["input"]
            assert UNBEARABLE in str(queue[0].input)
            if not queue[0].follows:
                queue.popleft()
        else:
            assert steer_id in self.owed
        self.owed.discard(steer_id)

    def _check_memory(self, response_id: str, lane: str | None) -> None:
        """A finished response is remembered, unless a bound or the next create already took it away."""
        was_forgotten = self.evictions > self.evictions_before
        is_claimed = any(asked.previous == response_id for asked in self.queues[lane])
        assert response_id in self.stage.cache or was_forgotten or is_claimed

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
            assert not self._waits_for(asked), "kept though their response is forgotten"

    def _check_refusal(self, asked: Asked, status: int, error: Json) -> None:
        if error["code"] in REFUSED_AT_THE_END:
            assert self.ending
            assert not asked.loading
        elif status == 500:
            assert asked.loading
        elif error["param"] != "input" or asked.previous not in self.unbearable:
            assert {error["param"], error["message"]} & self.model.outcomes(self, asked)

    def _check_eviction(self, asked: Asked) -> None:
        parent = self.model.made.get(asked.previous or "")
        if asked.previous is None or parent is None:
            return
        if parent.peer is self and parent.lane == asked.lane:
            assert asked.previous not in self.stage.cache
            self.evictable.add(asked.previous)

    def _check_job(self, start: Start) -> None:
        job, asked = start.job, self.head(start.turn.lane)
        assert (job.response_id, job.tenant) == (asked.response_id, self.tenant)
        assert job.generate is asked.request.generate
        goes_on = asked.request.rollout and bool(asked.output)
        parent = asked.response_id if goes_on else asked.previous if asked.left is None else None
        assert (job.parent.id if job.parent else None) == parent
        context, expected = context_of(job), self.model.context(asked)
        if job.offer.forbidden:
            context.pop()  # the question for a summary
            # Before it, something stands for the answer to each call that was cut off.
            assert {item["type"] for item in context[len(expected) :]} <= {"function_call_output"}
            context = context[: len(expected)]
        assert context == expected


class Connections(RuleBasedStateMachine):
    """Rules pick among what there is by number, so that every step does something."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(**LIMITS)
        self.model = Model()
        self.peers = [Peer(self.model, self.world, tenant) for tenant in ("alice", "alice", "bob")]
        self.gone: list[Peer] = []
        self.asked = 0
        self.calm = 0
        """Steps since the last misfortune: too many of them, and nothing ever gets finished."""

    # What clients do.

    @rule(place=st.sampled_from(PLACES), previous=st.integers(0, 7), request=st.sampled_from(REQUESTS))
    def create(self, place, previous, request):
        """Anything at all: of the last few ids, whoever they belong to, or an unknown one, or none."""
        ids = [None, None, *reversed(self.model.ids[-5:]), "resp_unknown"]
        self._ask(place, ids[previous % len(ids)], request)

    @rule(place=st.sampled_from(PLACES), request=st.sampled_from(GOOD_REQUESTS))
    def flood(self, place, request):
        """More than one lane can take at once, and twice that is more than a connection can."""
        own = self._own(place[0])
        for _ in range(4):
            self._ask(place, own[-1] if own else None, request)

    @precondition(lambda self: self.model.made)
    @rule(place=st.sampled_from(PLACES), pick=st.integers(0, 4), request=st.sampled_from(GOOD_REQUESTS))
    def go_on(self, place, pick, request):
        """A client with good manners: continue or fork something of its own, with all that is needed."""
        own = self._own(place[0])
        self._ask(place, own[-1 - pick % len(own)] if own else None, request)

    def _own(self, who: int) -> list[str]:
        """The responses that a client could continue from, the newest last."""
        made = self.model.made.items()
        return [response_id for response_id, response in made if response.is_for(self.peers[who])]

    def _ask(self, place: tuple[int, str | None], previous: str | None, request: Request) -> None:
        who, lane = place
        peer = self._peer(who)
        self.asked += 1
        self.calm += 1
        asked = Asked(
            serial=str(self.asked),
            lane=lane,
            previous=previous,
            input=[*self._outputs(previous, request.outputs), message(f"say {self.asked}")],
            request=request,
            certain=self._is_certain(peer, lane, previous),
        )
        peer.ask(asked)

    def _outputs(self, previous: str | None, which: str) -> list[Json]:
        if which == "orphan":
            return [call_output("call_nobody_made")]
        made = self.model.made.get(previous or "")
        return [call_output(call) for call in made.open_calls] if made and which == "all" else []

    def _is_certain(self, peer: Peer, lane: str | None, previous: str | None) -> bool:
        """Whether the parent is remembered, and is either pinned by a fork or looked up at once."""
        if previous is None or previous not in peer.stage.cache:
            return False
        return peer.begins_at_once(lane) or self.model.made[previous].lane != lane

    @rule(who=st.integers(0, 2), pick=st.integers(0, 3), text=st.sampled_from(["", "", "", UNBEARABLE]))
    def steer(self, who, pick, text):
        """Anything that anybody has seen lately: being made, over, somebody else's, unknown."""
        ids = [*reversed(self.model.ids[-3:]), "resp_unknown"]
        self._steer(self._peer(who), ids[pick % len(ids)], text)

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8), times=st.integers(1, 4), text=st.sampled_from(["", "", UNBEARABLE]))
    def steer_what_is_being_made(self, pick, times, text):
        peer, lane = self._pick(pick)
        for _ in range(times):
            if (response_id := peer.head(lane).response_id) is not None:
                self._steer(peer, response_id, text)

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8), text=st.sampled_from(["", "", UNBEARABLE]))
    def steer_what_calls_a_tool(self, pick, text):
        """It is over, and what was added has to wait."""
        peer, lane = self._pick(pick)
        asked = peer.head(lane)
        if peer.is_at("starts", lane) and asked.request.generate and not asked.request.managed:
            assert asked.response_id is not None
            self._steer(peer, asked.response_id, text)
            peer.stage.finish(*CALL, lane=lane)
            if peer.is_at("saves", lane):
                peer.stage.save(lane)

    @precondition(lambda self: any(peer.waiting for peer in self.peers))
    @rule(pick=st.integers(0, 8), request=st.sampled_from([*GOOD_REQUESTS, *ODD_REQUESTS]))
    def go_on_from_what_waits(self, pick, request):
        waiting = [(who, target) for who, peer in enumerate(self.peers) for target in peer.waiting]
        who, target = waiting[pick % len(waiting)]
        self._ask((who, self.model.made[target].lane), target, request)

    @rule(who=st.integers(0, 2), pick=st.integers(0, 3), kind=st.sampled_from(["append", "inject"]))
    def append_to_anything(self, who, pick, kind):
        ids = [*reversed(self.model.ids[-3:]), "resp_unknown"]
        self._append(self._peer(who), ids[pick % len(ids)], ["call_nobody_made"], kind)

    @precondition(lambda self: any(self._rollouts()))
    @rule(
        pick=st.integers(0, 8),
        which=st.sampled_from(["all", "all", "one", "last", "twice", "orphan"]),
        kind=st.sampled_from(["append", "append", "inject"]),
    )
    def append(self, pick, which, kind):
        """What a rollout waits for, or will wait for, or will never take."""
        found = list(self._rollouts())
        peer, asked = found[pick % len(found)]
        assert asked.response_id is not None
        owed = asked.open_calls
        calls = {"all": owed, "one": owed[:1], "last": owed[-1:], "twice": owed[:1] * 2, "orphan": []}[which]
        self._append(peer, asked.response_id, calls or ["call_nobody_made"], kind)

    @rule(place=st.sampled_from(PLACES), request=st.sampled_from(ROLLOUTS), calls=st.integers(1, 3))
    def roll_out(self, place, request, calls):
        """Get a rollout so far that it waits, if nothing is in its way."""
        who, lane = place
        self._ask(place, None, request)
        peer = self.peers[who]
        if peer.is_at("starts", lane) and peer.head(lane).request.rollout:
            peer.stage.finish(*(calls * CALL), lane=lane)

    @precondition(lambda self: any(self._rollouts()))
    @rule(pick=st.integers(0, 8), kind=st.sampled_from(["append", "inject"]), cut=st.booleans())
    def answer_early(self, pick, kind, cut):
        """While the model is still calling. It may end before it is silent."""
        found = [(peer, asked) for peer, asked in self._rollouts() if peer.is_at("starts", asked.lane)]
        if not found:
            return
        peer, asked = found[pick % len(found)]
        assert asked.response_id is not None
        asked.spoken = True
        peer.stage.say(*CALL, *CALL, lane=asked.lane)
        self._append(peer, asked.response_id, asked.open_calls[:1], kind)
        if cut:
            peer.stage.finish(lane=asked.lane, reason="max_output_tokens")

    def _rollouts(self) -> Iterator[tuple[Peer, Asked]]:
        for peer in self.peers:
            if peer.stage.close is None:
                heads = (asked for asked in peer._heads() if asked.request.rollout and asked.response_id)
                yield from ((peer, asked) for asked in heads)

    def _append(self, peer: Peer, target: str, calls: list[str], kind: str) -> None:
        items = []
        for call in calls:
            self.asked += 1
            items.append(call_output(call, f"answer {self.asked}"))
        peer.append(target, items, kind)

    def _answer(self, peer: Peer, lane: str | None) -> None:
        """Give a rollout that is paused all that it waits for."""
        asked = peer.head(lane)
        assert asked.response_id is not None
        self._append(peer, asked.response_id, asked.open_calls, "append")

    def _steer(self, peer: Peer, target: str, text: str) -> None:
        self.asked += 1
        self.calm += 1
        peer.steer(target, f"steer {self.asked} {text}")

    # What engines and stores do.

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8), words=st.sampled_from(SPEECH))
    def work(self, pick, words):
        """Take one running turn one step further, whatever it waits for."""
        peer, lane = self._pick(pick)
        self.calm += 1
        if lane in peer.paused:
            self._answer(peer, lane)
        elif peer.is_at("loads", lane):
            peer.load(lane)
        elif peer.is_at("checks", lane):
            with peer.forgetting_only_evictable():
                peer.check(lane)
        elif peer.is_at("weighs", lane):
            peer.stage.weigh(1000 * (pick % 3), lane)
        elif peer.is_at("saves", lane):
            peer.stage.save(lane)
        elif peer.stage.job(lane).offer.forbidden:
            peer.stage.finish(*words, Text("in short"), lane=lane)
        elif peer.stage.job(lane).generate and not peer.head(lane).spoken:
            peer.head(lane).spoken = True
            peer.stage.say(*words, *words, lane=lane)
        else:
            peer.stage.finish(lane=lane)

    @precondition(lambda self: any(self._at_work()))
    @rule(pick=st.integers(0, 8))
    def cut_short(self, pick):
        peer, lane = self._pick(pick)
        if peer.is_at("starts", lane) and peer.stage.job(lane).generate:
            steered = peer.stage.job(lane).stop.asked
            said = [] if steered else [Text("half")]
            peer.stage.finish(*said, lane=lane, reason="steered" if steered else "max_output_tokens")

    @rule(who=st.integers(0, 2))
    def work_off(self, who):
        """Do all that one connection waits for."""
        self._drain(self.peers[who])

    @precondition(lambda self: self.calm > 3 and any(self._at_work()))
    @rule(pick=st.integers(0, 8))
    def fail(self, pick):
        peer, lane = self._pick(pick)
        if lane in peer.paused:
            return  # nobody works on it who could fail
        self.calm = 0
        peer.head(lane).loading = any(peer.is_at(work, lane) for work in ("loads", "checks", "weighs"))
        with peer.forgetting_only_evictable():
            peer.stage.fail(lane)

    # How connections end.

    @precondition(lambda self: self.calm > 8)
    @rule(who=st.integers(0, 2))
    def disconnect(self, who):
        self.calm = 0
        self._replace(who)

    @precondition(lambda self: any(peer.stage.saves for peer in self.gone))
    @rule()
    def save_for_one_who_is_gone(self):
        """What was being saved when the client left is saved, and can be continued elsewhere."""
        peer = next(peer for peer in self.gone if peer.stage.saves)
        turn = next(iter(peer.stage.saves))
        assert turn.response is not None
        said = len(peer.stage.events)
        peer.stage.save(turn.lane)
        assert len(peer.stage.events) == said
        asked = peer.queues[turn.lane].popleft()
        asked.output = [json.loads(bytes(item)) for item in turn.response.output]
        self.model.finish(peer, asked, turn.response.status, stored=True)

    @precondition(lambda self: self.calm > 8)
    @rule(who=st.integers(0, 2))
    def wind_down(self, who):
        self.calm = 0
        peer = self._peer(who)
        peer.end_until(self.world.now + 20.0)
        peer.stage.end(Unavailable("The server is shutting down."), grace_s=20.0)

    @precondition(lambda self: self.calm > 4)
    @rule(seconds=st.sampled_from([15, 15, 600]))
    def tick(self, seconds):
        self.world.now += seconds
        for peer in self.peers:
            if self.world.now - peer.opened_at >= LIMITS["max_age_s"]:
                peer.end_until(self.world.now + LIMITS["age_grace_s"])
            peer.stage.tick()
            assert seconds < LIMITS["rollout_wait_s"] or not peer.paused, "waits forever"
            in_time = peer.deadline is None or self.world.now < peer.deadline
            at_work = peer.stage.starts or peer._beginning()
            assert in_time or not at_work, "the grace is over"

    # Always.

    @invariant()
    def connections_stay_within_their_bounds(self):
        for peer in self.peers:
            session = peer.stage.session
            assert session.in_flight == len(peer.busy) <= LIMITS["max_in_flight"]
            assert len(set(peer.busy)) == len(peer.busy), "two responses on one lane"
            assert session.waiting == peer.unanswered - session.in_flight
            assert session.waiting <= LIMITS["max_queued"]

    @invariant()
    def memory_is_what_the_books_say_and_within_its_bounds(self):
        totals = {"alice": 0, "bob": 0}
        for peer in self.peers:
            cache = peer.stage.cache
            states = [cache._entries[response_id].state for response_id in cache._entries]
            held = {node for state in states for node in state.chain()}
            assert cache.used_bytes == sum(node.size_bytes for node in held)
            assert cache.used_bytes <= LIMITS["connection_cache_bytes"]
            totals[peer.tenant] += cache.used_bytes
            peer.evictions_before = peer.evictions
        for tenant, total in totals.items():
            scope, process = self.world.scopes.of(tenant)
            assert scope.used_bytes == total <= LIMITS["tenant_cache_bytes"]
        assert process.used_bytes == sum(totals.values()) <= LIMITS["process_cache_bytes"]

    @invariant()
    def the_bytes_of_requests_are_counted_while_they_wait_or_run(self):
        totals = {"alice": 0, "bob": 0}
        for peer in self.peers:
            session = peer.stage.session
            held = session._charges._held
            turns = [*session._lanes.running(), *session._lanes.queued()] if peer.stage.close is None else []
            for turn in turns:
                taken = turn.size_bytes if not turn.follows or turn.steered_by is None else 0
                assert held.get(turn, 0) >= taken, "a request is not counted"
            steers = [each for turn in turns for each in (turn.steers, turn.steered_by) if each is not None]
            steers += session._succession._waiting.values()
            assert {each: each.size_bytes for each in steers} == {
                holder: size for holder, size in held.items() if isinstance(holder, Steers)
            }
            assert held.keys() <= {*turns, *steers}, "a request is counted that is over"
            totals[peer.tenant] += sum(held.values())
        assert {tenant: self.world.requests.used_by(tenant) for tenant in totals} == totals
        assert self.world.requests.used_bytes == sum(totals.values())

    @invariant()
    def nobody_remembers_what_another_connection_made(self):
        for peer in self.peers:
            for response_id in peer.remembered():
                assert self.model.made[response_id].peer is peer

    @invariant()
    def nothing_is_owed(self):
        for peer in self.peers:
            assert not peer.owed, "a steer was lost"
            for target, steers in peer.waiting.items():
                assert peer.pending >= steers.keys(), f"nobody was told what {target} waits for"

    # In the end.

    def teardown(self):
        for peer in self.peers:
            self._drain(peer)
            self.connections_stay_within_their_bounds()
            assert not peer.unanswered, "a create was never answered"
            self.nothing_is_owed()
            peer.stage.order.finish()
        self.memory_is_what_the_books_say_and_within_its_bounds()
        for peer in self.gone:
            peer.stage.order.finish(abandoned=True)
            assert peer.stage.cache.used_bytes == 0
        self.the_bytes_of_requests_are_counted_while_they_wait_or_run()
        for peer in self.peers:
            peer.stage.session.closed()
        assert self.world.requests.used_bytes == 0, "all is over"

    def _drain(self, peer: Peer) -> None:
        stage = peer.stage
        while peer.busy:
            for lane in peer.paused:
                self._answer(peer, lane)
            for turn in list(stage.loads):
                peer.load(turn.lane)
            for turn in list(stage.checks):
                peer.check(turn.lane)
            for turn in list(stage.weighs):
                stage.weigh(1000, turn.lane)
            for turn in list(stage.starts):
                stage.finish(lane=turn.lane)
            for turn in list(stage.saves):
                stage.save(turn.lane)

    # Within.

    def _peer(self, who: int) -> Peer:
        if self.peers[who].stage.close is not None:
            self._replace(who)
        return self.peers[who]

    def _replace(self, who: int) -> None:
        peer = self.peers[who]
        saving = {turn.lane for turn in peer.stage.saves}
        kept = [asked for asked in peer._heads() if asked.request.rollout and asked.request.store]
        # Where nothing was appended, there is nothing to keep but what waits for an answer.
        saving |= {asked.lane for asked in kept if asked.paused or asked.has_steps}
        peer.stage.hang_up()
        assert not peer.stage.starts
        assert not peer._beginning()
        assert {turn.lane for turn in peer.stage.saves} == saving
        self.gone.append(peer)
        self.peers[who] = Peer(self.model, self.world, peer.tenant)

    def _pick(self, pick: int) -> tuple[Peer, str | None]:
        found = list(self._at_work())
        return found[pick % len(found)]

    def _at_work(self) -> Iterator[tuple[Peer, str | None]]:
        return ((peer, lane) for peer in self.peers for lane in peer.busy)


TestConnections = Connections.TestCase
TestConnections.settings = settings(
    max_examples=150, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
