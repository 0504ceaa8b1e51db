"""A stage for the pure core: sessions without sockets, engines, stores or clocks.

A `World` is what connections share; a `Stage` is one connection in it. The stage carries out the actions of
its session by writing them down: what was sent is in `events`, and the work that a real driver would do
lies in `loads`, `checks`, `weighs`, `starts` and `saves` until a test does it. Every frame is validated, and
the order of all frames is checked, so that each test is also a test of the wire.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Raw, structs

from slipring.core.betas import NONE, Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.head import Head
from slipring.core.chain.sealed_items import BrokenSeal
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.chain.state_cache import ConnectionCache, SharedScopes
from slipring.core.generation import Accepted, Capabilities, Delta, Finished, Job, Model, Text
from slipring.core.limits import Limits
from slipring.core.ports import Means
from slipring.core.session.actions import (
    Action,
    Cancel,
    Check,
    CheckAppended,
    Close,
    Load,
    Record,
    Save,
    Send,
    Start,
    Weigh,
)
from slipring.core.session.loaded import Loaded
from slipring.core.session.session import Session
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError, ModelNotFound, ServerError
from slipring.protocol import wire
from slipring.protocol.items import Item, user_message
from slipring.protocol.responses import ReasoningEcho, Response, TextEcho
from tests.wire import NO_TYPES, Order, check_frame

Json = dict[str, Any]
PLAIN = Model(name="m", owner="tests", capabilities=Capabilities())
ABLE = Model(
    name="able",
    owner="tests",
    capabilities=Capabilities(logprobs=True, images=True, files=True),
    context_tokens=10_000,
)


class Models:
    """Two models: one that can do nothing special and is the default, one that can do everything."""

    def find(self, name: str | None) -> Model:
        for model in (PLAIN, ABLE):
            if name in (None, model.name):
                return model
        raise ModelNotFound(name or "", ["m", "able"])


class Envelopes:
    """Seals by keeping: a blob is a number, and what was put away under it is given to its tenant only."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, tuple[Item, ...]]] = []

    def seal(self, tenant: str, items: tuple[Item, ...]) -> str:
        self._kept.append((tenant, items))
        return f"envelope {len(self._kept) - 1}"

    def open(self, tenant: str, blob: str) -> tuple[Item, ...]:
        for number, (owner, items) in enumerate(self._kept):
            if (tenant, blob) == (owner, f"envelope {number}"):
                return items
        raise BrokenSeal


class World:
    """What connections share: the store, the memory bounds, the ids."""

    def __init__(self, **limits: float) -> None:
        self.limits = Limits(**limits)  # type: ignore[arg-type]
        self.scopes = SharedScopes(self.limits.tenant_cache_bytes, self.limits.process_cache_bytes)
        self.store: dict[tuple[str, str], ResponseState] = {}
        self.models = Models()
        self.now = 1000.0
        self.requests = Ledger(self.limits.tenant_request_bytes, self.limits.request_bytes)
        self.means = Means(mint=self.mint, clock=lambda: self.now, seal=Envelopes(), requests=self.requests)
        self._minted: Counter[str] = Counter()

    def mint(self, prefix: str) -> str:
        """`resp_1`, `resp_2`, `call_1`, …: the same in every run."""
        self._minted[prefix] += 1
        return f"{prefix}_{self._minted[prefix]}"

    def connect(self, tenant: str = "tenant", **watch: Any) -> "Stage":
        return Stage(self, tenant, **watch)


class Stage:
    """One connection: its session, what it sent, and the work that it waits for."""

    def __init__(
        self,
        world: World | None = None,
        tenant: str = "tenant",
        *,
        foreign_tools: frozenset[str] = NO_TYPES,
        on_event: Callable[[Json], None] | None = None,
        on_start: Callable[[Start], None] | None = None,
        accepts: Callable[[Job], bool] = lambda job: True,
        refuses: Callable[[Job], ApiError | None] = lambda job: None,
        betas: Betas = NONE,
    ) -> None:
        """``accepts``: whether the engine takes a job at once; if not, it waits for a delta or a failure."""
        self.world = world = world or World()
        self.tenant = tenant
        self.cache = ConnectionCache(world.limits.connection_cache_bytes, world.scopes.of(tenant))
        self.session = Session(
            tenant=tenant,
            models=world.models,
            limits=world.limits,
            means=world.means,
            cache=self.cache,
            now=world.now,
            betas=betas,
        )
        self.events: list[Json] = []
        self.frames: list[bytes] = []
        self.loads: dict[Turn, Load] = {}
        self.checks: dict[Turn, Check] = {}
        self.checks_appended: list[CheckAppended] = []
        self.weighs: dict[Turn, Weigh] = {}
        self.starts: dict[Turn, Start] = {}
        self.saves: dict[Turn, Save] = {}
        self.cancelled: list[Turn] = []
        self.close: Close | None = None
        self.order = Order()
        self._foreign_tools = foreign_tools
        self._on_event = on_event
        self._on_start = on_start
        self._accepts = accepts
        self._refuses = refuses
        self.reports: list[Record] = []

    # What a client does. Each returns the events that it caused.

    def receive(self, frame: bytes | str) -> list[Json]:
        return self._run(self.session.receive(frame, self.world.now))

    def create(self, lane: str | None = None, previous: str | None = None, **fields: Any) -> list[Json]:
        """Ask for a response that says something and is not stored, unless `fields` say otherwise."""
        frame: Json = {"type": "response.create", "model": "m", "input": "hi", "store": False, **fields}
        if lane is not None:
            frame["stream_id"] = lane
        if previous is not None:
            frame["previous_response_id"] = previous
        return self.receive(json.dumps(frame))

    def steer(self, target: str, input: Any = "wait", **fields: Any) -> Json:
        """Add something to a response; the event that answers."""
        frame = {"type": "response.steer", "previous_response_id": target, "input": input, **fields}
        (answer,) = self.receive(json.dumps(frame))
        return answer

    def append(self, target: str, *items: Json, kind: str = "append", **fields: Any) -> list[Json]:
        """Send a response what it waits for."""
        return self.receive(self.append_frame(target, *items, kind=kind, **fields))

    def append_frame(self, target: str, *items: Json, kind: str = "append", **fields: Any) -> str:
        return json.dumps({"type": f"response.{kind}", "response_id": target, "input": items, **fields})

    def respond(self, lane: str | None = None, previous: str | None = None, **fields: Any) -> Json:
        """Ask for a response and see it through; returns the finished response object."""
        text = fields.pop("says", "ok")
        self.create(lane, previous, **fields)
        if any(turn.lane == lane for turn in self.loads):
            self.load(lane)
        return self.complete(lane, text)

    # What an engine does.

    def job(self, lane: str | None = None) -> Job:
        """The job that runs on a lane."""
        return self.starts[self._at(self.starts, lane)].job

    def check(self, lane: str | None = None) -> list[Json]:
        """What a request defines has been compiled."""
        return self._run(self.session.checked(self.checks.pop(self._at(self.checks, lane))))

    def check_appended(self, error: ApiError | None = None) -> list[Json]:
        """What was to be appended first has been compiled, or could not be."""
        asked = self.checks_appended.pop(0).asked
        return self._run(self.session.appended(structs.replace(asked, error=error), self.world.now))

    def weigh(self, tokens: int, lane: str | None = None) -> list[Json]:
        """The engine has counted what it was asked to count."""
        weigh = self.weighs.pop(self._at(self.weighs, lane))
        return self._run(self.session.weighed(weigh, tokens))

    def say(self, *deltas: Delta, lane: str | None = None) -> list[Json]:
        return self._run([Send(self.session.deltas(self._at(self.starts, lane), list(deltas)))])

    def finish(
        self, *deltas: Delta, lane: str | None = None, reason: Any = "stop", position: Any = None
    ) -> list[Json]:
        """The engine's last deltas. A response that is to be stored then waits in `saves`."""
        turn = self._at(self.starts, lane)
        job = self.starts.pop(turn).job
        tokens = 3 if job.generate else 0
        end = Finished(
            reason=reason, input_tokens=7, cached_tokens=2, output_tokens=tokens, position=position
        )
        told = self._run([Send(self.session.deltas(turn, [*deltas, end]))])
        return told + self._run(self.session.finished(turn, self.world.now))

    def complete(self, lane: str | None = None, text: str = "ok") -> Json:
        """Answer with a text (a warmup with nothing), store it if asked to, return the response object."""
        self.finish(*([Text(text)] if self.job(lane).generate else []), lane=lane)
        if any(turn.lane == lane for turn in self.saves):
            self.save(lane)
        response: Json = self.order.responses[-1]
        return response

    # What a store does.

    def load(self, lane: str | None = None) -> list[Json]:
        turn = self._at(self.loads, lane)
        wanted = self.loads.pop(turn)
        state = self.world.store.get((self.tenant, wanted.response_id or ""))
        own = (s.input + s.output for (tenant, _), s in self.world.store.items() if tenant == self.tenant)
        found = {item.id: item for items in own for item in items if item.id in wanted.item_ids}
        return self._run(self.session.loaded(turn, Loaded(state, found), self.world.now))

    def save(self, lane: str | None = None) -> list[Json]:
        turn = self._at(self.saves, lane)
        state = self.saves.pop(turn).state
        self.world.store[self.tenant, state.id] = state
        return self._run(self.session.saved(turn, self.world.now))

    # What goes wrong, and time.

    def fail(self, lane: str | None = None, error: ApiError | None = None) -> list[Json]:
        """Whatever works on this lane's turn cannot do it: engine, load or save."""
        for work in (self.checks, self.weighs, self.starts, self.loads, self.saves):
            for turn in [turn for turn in work if turn.lane == lane]:
                del work[turn]
                return self._run(self.session.failed(turn, error or ServerError(), self.world.now))
        raise LookupError(f"nothing runs on lane {lane!r}")

    def tick(self, seconds: float = 0.0) -> list[Json]:
        self.world.now += seconds
        return self._run(self.session.tick(self.world.now))

    def end(self, error: ApiError, *, code: int = 1001, grace_s: float = 30.0) -> list[Json]:
        return self._run(self.session.end(error, code=code, grace_s=grace_s, now=self.world.now))

    def hang_up(self) -> list[Json]:
        """The connection is gone, and nobody hears what is still said."""
        left: list[Action] = [
            action for action in self.session.leave(self.world.now) if not isinstance(action, Send)
        ]
        return self._run(left + self.session.closed())

    # Within.

    def _at(self, work: Iterable[Turn], lane: str | None) -> Turn:
        found = [turn for turn in work if turn.lane == lane]
        assert len(found) == 1, f"{len(found)} such turns on lane {lane!r}"
        return found[0]

    def _run(self, actions: list[Action]) -> list[Json]:
        before = len(self.events)
        for action in actions:
            assert self.close is None, f"{action} after Close"
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, CheckAppended):
                self.checks_appended.append(action)
            elif isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Load | Check | Weigh | Save):
                work: Any = {Load: self.loads, Check: self.checks, Weigh: self.weighs, Save: self.saves}
                work[type(action)][action.turn] = action
            elif isinstance(action, Cancel):
                self.cancelled.append(action.turn)
                for work in (self.loads, self.checks, self.weighs, self.starts, self.saves):
                    work.pop(action.turn, None)
            elif isinstance(action, Record):
                self.reports.append(action)
            else:
                self.close = action
        return self.events[before:]

    def _start(self, start: Start) -> None:
        if (error := self._refuses(start.job)) is not None:
            self._run(self.session.failed(start.turn, error, self.world.now))
            return
        self.starts[start.turn] = start
        if self._accepts(start.job):
            self._send(Send(self.session.deltas(start.turn, [Accepted()])))
        if self._on_start is not None:
            self._on_start(start)

    def _send(self, send: Send) -> None:
        for event in send.events:
            frame = wire.encode(event)
            told = check_frame(frame, self._foreign_tools)
            self.frames.append(frame)
            self.events.append(told)
            self.order.see(told)
            if self._on_event is not None:
                self._on_event(told)


def types(events: Iterable[Json]) -> list[str]:
    """The types of events, without the prefix that they share."""
    return [event["type"].removeprefix("response.") for event in events]


def only_error(events: list[Json]) -> Json:
    """The error frame, where it is all that was said."""
    assert types(events) == ["error"]
    return events[0]


def message(text: str | list[Json], role: str = "user") -> Json:
    return {"type": "message", "role": role, "content": text}


def call_output(call_id: str, output: str = "42", kind: str = "function_call_output") -> Json:
    return {"type": kind, "call_id": call_id, "output": output}


def function(name: str, **fields: Any) -> Json:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **fields}


def context_of(job: Job) -> list[Json]:
    """The items that an engine is given, oldest first."""
    return [json.loads(item.raw) for item in job.context()]


_HEAD = Head()


def node(
    id: str, parent: ResponseState | None = None, *, text: str = "hi", output: tuple[Item, ...] = ()
) -> ResponseState:
    """A state as a finished response leaves it, without the trouble of making one."""
    response = Response(
        id=id,
        created_at=0,
        model="m",
        instructions=Raw(b"null"),
        previous_response_id=parent.id if parent is not None else None,
        tools=Raw(b"[]"),
        tool_choice=Raw(b'"auto"'),
        parallel_tool_calls=True,
        reasoning=ReasoningEcho(),
        text=TextEcho(format=Raw(b'{"type":"text"}')),
        store=False,
        metadata={},
        truncation="disabled",
        temperature=1.0,
        top_p=1.0,
        top_logprobs=0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        service_tier="default",
        max_output_tokens=None,
        max_tool_calls=None,
        prompt_cache_key=None,
        safety_identifier=None,
        user=None,
        status="completed",
    )
    return ResponseState(
        response=response,
        parent=parent,
        head=parent.head if parent is not None else _HEAD,
        input=(user_message(text),),
        output=output,
        carry=parent.carry if parent is not None else Carry(),
    )


def line(length: int, first: str = "n0") -> list[ResponseState]:
    """A chain of this many nodes, oldest first."""
    nodes = [node(first)]
    for number in range(1, length):
        nodes.append(node(f"n{number}", nodes[-1]))
    return nodes
