"""Test driver for the pure core: runs sessions without sockets, engines, stores or clocks.

A `Connection` has one session and records its actions: the events that it sends are in `events`; the work
that it asks for waits in `loads`, `resolves`, `checks`, `claims`, `weighs`, `starts`, `calls` and `saves`
until the test does it. A `Server` holds what connections share, and the lists of its MCP servers. Every event
is validated against the API's types, and so is the order of all events, so that each test also tests the wire
format.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from msgspec import Raw, structs

from slipring.base.errors import ApiError, InvalidRequest, ModelNotFound, ServerError
from slipring.core import attachments
from slipring.core.attachments import Fetched, ReadPages
from slipring.core.betas import NO_BETAS, Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.hosted_items_in_context import call_item
from slipring.core.chain.instructions_and_tools import Head, KnownHeads
from slipring.core.chain.resent_history import KnownContexts, KnownItems
from slipring.core.chain.sealed_items import BrokenSeal
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.chain.state_cache import ConnectionCache, SharedScopes
from slipring.core.checks.answer_gate import Inspection
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import NO_POLICY, Policy, checks_of
from slipring.core.checks.policies import Check as SafetyCheck
from slipring.core.checks.verdicts import Subject, Verdict
from slipring.core.generation import Accepted, Capabilities, Delta, Finished, Job, Model, Text
from slipring.core.hosted_tools import CallOutcome, CallProgress, FetchedList, ResolvedBuiltin, ResolvedServer
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session.actions import (
    Action,
    CallTool,
    Cancel,
    CancelCalls,
    ClaimApprovals,
    Close,
    CompileAppended,
    CompileGrammars,
    Compress,
    Counted,
    CountTokens,
    EndPrefill,
    FetchImages,
    Flush,
    Generate,
    Inspect,
    ListTools,
    Load,
    Loaded,
    LogFault,
    ReadDocuments,
    Record,
    ReportOutput,
    ReportSteer,
    Resolved,
    ResolveTools,
    Save,
    Send,
    StartAudit,
    StartPrefill,
    Work,
)
from slipring.core.session.client_events import ClientEvent
from slipring.core.session.session import Session
from slipring.core.turn.stages import Stages
from slipring.core.turn.turn import Joined, Turn
from slipring.protocol import wire
from slipring.protocol.events import Event
from slipring.protocol.items.hosted_items import CallError, McpApprovalRequest, McpCall, McpListTools
from slipring.protocol.items.items import Item, read_item, user_message
from slipring.protocol.requests import ResentHistory, read_create
from slipring.protocol.responses import ReasoningEcho, Response, TextEcho
from slipring.protocol.tools.mcp_tools import ListedTool, ToolHints
from tests.wire import NO_TYPES, Order, check_frame

Json = dict[str, Any]
PLAIN = Model(name="m", owner="tests", capabilities=Capabilities())
SEEING = Model(name="seeing", owner="tests", capabilities=Capabilities(images=True))
ABLE = Model(
    name="able",
    owner="tests",
    capabilities=Capabilities(logprobs=True, images=True, files=True),
    context_tokens=10_000,
)


class Models:
    """Models: the default one without optional capabilities, one that sees, and one with all of them."""

    def find(self, name: str | None) -> Model:
        for model in (PLAIN, ABLE, SEEING):
            if name in (None, model.name):
                return model
        raise ModelNotFound(name or "", ["m", "able"])


class Envelopes:
    """A `Seal` without encryption: a blob is the number of an entry that only its tenant can read."""

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

    def tag(self, tenant: str, data: bytes) -> str:
        return hashlib.sha256(tenant.encode() + b" " + data).hexdigest()[:16]

    def verify(self, tenant: str, data: bytes, tag: str) -> bool:
        return tag == self.tag(tenant, data)


class Server:
    """What connections share: the store, the limits, the clock and the ids."""

    def __init__(self, **limits: float) -> None:
        self.limits = Limits(**limits)  # type: ignore[arg-type]
        self.scopes = SharedScopes(self.limits.tenant_cache_bytes, self.limits.process_cache_bytes)
        self.store: dict[tuple[str, str], ResponseState] = {}
        self.models = Models()
        self.policy = NO_POLICY
        """Of the safety checks of connections that are opened from now on."""
        self.lists: dict[str, tuple[ListedTool, ...]] = {"s": (listed("f"), listed("g")), "t": (listed("f"),)}
        """The tools of MCP servers, by label."""
        self.used: set[tuple[str, str]] = set()
        """Approvals that were used, with their tenants."""
        self.now = 1000.0
        self.requests = Ledger(self.limits.tenant_request_bytes, self.limits.request_bytes)
        self.known = KnownContexts(self.limits.recognised_s, self.limits.recognised_bytes)
        self.heads = KnownHeads(self.limits.recognised_s, self.limits.recognised_bytes)
        self.items = KnownItems(self.limits.recognised_s, self.limits.recognised_bytes)
        self.ports = Ports(
            mint=self.mint,
            clock=lambda: self.now,
            seal=Envelopes(),
            requests=self.requests,
            known=self.known,
            heads=self.heads,
            items=self.items,
            verdicts=KnownVerdicts(10**6),
        )
        self._minted: Counter[str] = Counter()

    @classmethod
    def fetching_images(cls, **limits: float) -> "Server":
        """A server whose operator allows hosts of images."""
        server = cls(**limits)
        server.ports = structs.replace(server.ports, fetches_images=True)
        return server

    @classmethod
    def reading_documents(cls, **limits: float) -> "Server":
        """A server that reads PDF files."""
        server = cls(**limits)
        server.ports = structs.replace(server.ports, reads_documents=True)
        return server

    def mint(self, prefix: str) -> str:
        """`resp_1`, `resp_2`, `call_1`, …: the same in every run."""
        self._minted[prefix] += 1
        return f"{prefix}_{self._minted[prefix]}"

    def connect(self, tenant: str = "tenant", **watch: Any) -> "Connection":
        return Connection(self, tenant, **watch)


class OnePolicy:
    """The same policy for every model."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.checks = {check.name: check for check in policy.checks}

    def policy_of(self, model: str) -> Policy:
        return self._policy


class Seen:
    """A position that knows which content it stands for: a job's context, with or without the answer."""

    def __init__(self, job: Job, turn: Turn | None = None, first: int = 0) -> None:
        """``turn`` and ``first``: the turn that answers, and the index in its output at which the answer
        begins; without them, the position is that of the context alone."""
        self.tenant, self.model, self.head = job.tenant, job.model.name, job.head
        self._job = job
        continued = job.parent.position if job.parent is not None else None
        if isinstance(continued, Seen):
            self._before = continued.content + visible(job.input)
        else:
            self._before = visible(job.context())
        self._turn = turn
        self._first = first
        self.end: int | None = None
        """The index at which the answer ends; None: at the first output of a call."""

    @property
    def content(self) -> list[Json]:
        answer = self._turn.output.items[self._first : self.end] if self._turn is not None else []
        written = takewhile(lambda item: not item.type.endswith("_output"), answer)
        return self._before + [seen for item in written for seen in _written(item)]

    @property
    def size_bytes(self) -> int:
        return 100 * len(self._before)

    def unshared_bytes(self, earlier: Any) -> int:
        shared = int(earlier.size_bytes) if self._continues(earlier) else 0
        return max(self.size_bytes - shared, 0)

    def _continues(self, earlier: Any) -> bool:
        """Whether an engine has made this position from that one, or from the same context."""
        job: Job | None = self._job
        while job is not None:
            if isinstance(earlier, Seen) and earlier._job is job:
                return True
            before = job.parent.position if job.parent is not None else None
            job = before._job if isinstance(before, Seen) else None
        return False


_UNSEEN = ("id", "status", "summary", "encrypted_content")


def _written(item: Item) -> list[Json]:
    """What the model has written of an output item."""
    body = item.body()
    if isinstance(body, McpListTools):
        return []
    if not isinstance(body, McpCall | McpApprovalRequest):
        return visible([item])
    assert item.id is not None
    return visible([call_item(item.id, body.server_label, body.name, body.arguments)])


def visible(items: Iterable[Item]) -> list[Json]:
    """What a model sees of items."""
    return [_visible(json.loads(item.raw)) for item in items]


def _visible(item: Json) -> Json:
    seen = {key: value for key, value in item.items() if key not in _UNSEEN}
    for key in ("content", "output"):
        if isinstance(seen.get(key), list):
            seen[key] = "".join(part["text"] for part in seen[key])
    return seen


_Beside = StartPrefill | EndPrefill | ReportOutput | ReportSteer | Inspect | StartAudit
"""What runs beside the turns."""


class Connection:
    """One session, with the events that it sent and the work that it waits for."""

    cancelled: list[Turn]
    over: list[Work[Any] | CallTool]
    """Work and hosted calls that have ended, or were cancelled."""
    heard: Counter[str]
    """How often the output of tools was reported, by response."""
    steered: Counter[str]
    """How often a steer was reported, by response."""
    cached_tokens = 2
    """Of the prompt of each job, as the engine counts."""
    accepted = Accepted()
    """What the engine says when it accepts a job."""

    resolves: dict[Turn, ResolveTools]
    fetches: dict[Turn, FetchImages]
    reads: dict[Turn, ReadDocuments]
    listings: dict[Turn, ListTools]
    _has_left = False
    fault: Exception | None = None
    """What the session has logged since the last call."""

    def __init__(
        self,
        server: Server | None = None,
        tenant: str = "tenant",
        *,
        foreign_tools: frozenset[str] = NO_TYPES,
        on_event: Callable[[Json], None] | None = None,
        on_start: Callable[[Generate], None] | None = None,
        accepts: Callable[[Job], bool] = lambda job: True,
        refuses: Callable[[Job], ApiError | None] = lambda job: None,
        betas: Betas = NO_BETAS,
    ) -> None:
        """``accepts``: whether the engine accepts a job at once; if not, the test sends the first delta."""
        self.server = server = server or Server()
        self.tenant = tenant
        self.cache = ConnectionCache(
            server.limits.connection_cache_bytes,
            server.scopes.of(tenant),
            compressible_bytes=server.limits.connection_compressed_bytes,
        )
        self.session = Session(
            tenant=tenant,
            models=server.models,
            limits=server.limits,
            ports=server.ports,
            cache=self.cache,
            now=server.now,
            betas=betas,
            policies=OnePolicy(server.policy),
        )
        self.events: list[Json] = []
        self.frames: list[bytes] = []
        self.loads: dict[Turn, Load] = {}
        self.checks: dict[Turn, CompileGrammars] = {}
        self.checks_appended: list[CompileAppended] = []
        self.weighs: dict[Turn, CountTokens] = {}
        self.starts: dict[Turn, Generate] = {}
        self.resolves, self.listings, self.fetches, self.reads = {}, {}, {}, {}
        self.claims: dict[Turn, ClaimApprovals] = {}
        self.calls: dict[str, CallTool] = {}
        """Hosted calls that run, by the id of their item."""
        self.cancelled_calls: list[str] = []
        self.counted: list[int] = []
        self.saves: dict[Turn, Save] = {}
        self.inspections: list[Inspect] = []
        """Those that run, in the order in which they began."""
        self.inspected: list[tuple[str, str, str]] = []
        """Everything that was inspected: when, its kind, its text."""
        self.audits: list[StartAudit] = []
        self.compressions: list[Compress] = []
        self.prefills: dict[str, StartPrefill] = {}
        """Those that run, by response."""
        self.cancelled, self.over, self.heard, self.steered = [], [], Counter(), Counter()
        self.close: Close | None = None
        self.order = Order()
        self._foreign_tools = foreign_tools
        self._on_event = on_event
        self._on_start = on_start
        self._accepts = accepts
        self._refuses = refuses
        self.leaves_positions = False
        """Whether the engine leaves ``Seen`` positions, so that histories are recognised."""
        self._first_output: dict[Turn, int] = {}
        """By turn: the index in its output at which its running job began."""
        self.reports: list[Record] = []

    # The client. Each method returns the events that it causes.

    def receive(self, frame: bytes | str | ClientEvent | None) -> list[Json]:
        return self._run(self.session.receive(frame, self.server.now))

    def create(self, lane: str | None = None, previous: str | None = None, **fields: Any) -> list[Json]:
        """Send a create with an input and `store` false, unless `fields` override them."""
        frame: Json = {"type": "response.create", "model": "m", "input": "hi", "store": False, **fields}
        if lane is not None:
            frame["stream_id"] = lane
        if previous is not None:
            frame["previous_response_id"] = previous
        return self.receive(json.dumps(frame))

    def post(self, **fields: Any) -> list[Json]:
        """Create a response for a client of an API that sends whole histories."""
        read = read_create(json.dumps({"model": "m", "input": "hi", "store": False, **fields}))
        request = ResentHistory(**{name: getattr(read, name) for name in read.__struct_fields__})
        stages = Stages(self.server.ports.clock)
        return self._run(self.session.create(request, stages, size_bytes=1, now=self.server.now))

    def create_in_background(self, **fields: Any) -> list[Json]:
        """Create a response that runs in the background."""
        request = read_create(json.dumps({"model": "m", "input": "hi", "background": True, **fields}))
        stages = Stages(self.server.ports.clock)
        return self._run(
            self.session.create(request, stages, size_bytes=1, now=self.server.now, detached=True)
        )

    def steer(self, target: str, input: Any = "wait", **fields: Any) -> Json:
        """Steer a response; returns the event that answers. Only the end of hosted calls or lists may follow
        it."""
        frame = {"type": "response.steer", "previous_response_id": target, "input": input, **fields}
        answer, *after = self.receive(json.dumps(frame))
        ends = ("response.mcp_call.failed", "response.mcp_list_tools.failed", "response.incomplete")
        assert not after or after[0]["type"] in ends
        return answer

    def append(self, target: str, *items: Json, kind: str = "append", **fields: Any) -> list[Json]:
        """Append call outputs to a response."""
        return self.receive(self.append_frame(target, *items, kind=kind, **fields))

    def append_frame(self, target: str, *items: Json, kind: str = "append", **fields: Any) -> str:
        return json.dumps({"type": f"response.{kind}", "response_id": target, "input": items, **fields})

    def stream_output(self, target: str, call_id: str, delta: str) -> list[Json]:
        """Send a piece of a tool's output."""
        piece = {"response_id": target, "call_id": call_id, "delta": delta}
        return self.receive(json.dumps({"type": "response.tool_output.delta", **piece}))

    def end_output(self, target: str, call_id: str) -> list[Json]:
        """A tool has written all its output."""
        done = {"response_id": target, "call_id": call_id}
        return self.receive(json.dumps({"type": "response.tool_output.done", **done}))

    def respond(self, lane: str | None = None, previous: str | None = None, **fields: Any) -> Json:
        """Send a create and complete its response; returns the finished response object."""
        text = fields.pop("says", "ok")
        self.create(lane, previous, **fields)
        if any(turn.asked.lane == lane for turn in self.loads):
            self.load(lane)
        return self.complete(lane, text)

    # The compiler and the engine.

    def job(self, lane: str | None = None) -> Job:
        """The job that runs on a lane."""
        return self.starts[self._at(self.starts, lane)].job

    def check(self, lane: str | None = None) -> list[Json]:
        """The grammars of a request compile."""
        return self.done(self.checks.pop(self._at(self.checks, lane)))

    def check_appended(self, error: ApiError | None = None) -> list[Json]:
        """The grammars of the first append that waits compile, or fail with ``error``."""
        asked = self.checks_appended.pop(0).asked
        return self._run(self.session.appended(structs.replace(asked, error=error), self.server.now))

    def inspect(self, number: int = 0, /, **flags: str | None) -> list[Json]:
        """An inspection ends. Each check flags the texts that contain the word given under its name, and
        passes the others; None: it fails. A check that is not named flags texts that contain "bad"."""
        inspect = self.inspections.pop(number)
        verdicts = verdicts_of(inspect.inspection, flags)
        return self._run(self.session.turns.inspected(inspect, verdicts, self.server.now))

    def inspect_all(self, **flags: str | None) -> list[Json]:
        """All inspections end, and those that follow from them."""
        events = []
        while self.inspections:
            events += self.inspect(0, **flags)
        return events

    def audit(self, **flags: str | None) -> bool:
        """The first audit ends; returns whether its verdicts are to be stored."""
        audit = self.audits.pop(0).audit
        return audit.settle(verdicts_of(audit.inspection, flags))

    def weigh(self, tokens: int, lane: str | None = None) -> list[Json]:
        """The engine has counted the tokens of a job."""
        return self.done(self.weighs.pop(self._at(self.weighs, lane)), tokens)

    def generate(self, *deltas: Delta, lane: str | None = None) -> list[Json]:
        turn = self._at(self.starts, lane)
        sent = self._run([Send(emitted(self.session, self.starts[turn], list(deltas)))])
        return sent + self._run(self.session.turns.due(turn))

    def finish(
        self,
        *deltas: Delta,
        lane: str | None = None,
        reason: Any = "stop",
        position: Any = None,
        stop_sequence: str | None = None,
    ) -> list[Json]:
        """The engine's last deltas. A response with `store` true then waits in `saves`."""
        turn = self._at(self.starts, lane)
        work = self.starts.pop(turn)
        self.over.append(work)
        job = work.job
        tokens = 3 if job.generate else 0
        context = None
        if self.leaves_positions:
            context = Seen(job)
            position = Seen(job, turn, self._first_output[turn]) if job.generate else context
        end = Finished(
            reason=reason,
            input_tokens=7,
            cached_tokens=self.cached_tokens,
            output_tokens=tokens,
            position=position,
            context=context,
            stop_sequence=stop_sequence,
        )
        sent = self._run([Send(emitted(self.session, work, [*deltas, end]))])
        after = self.session.turns.done(work, None, self.server.now)
        if isinstance(position, Seen):
            position.end = turn.output.began
        return sent + self._run(after)

    # Hosted tools.

    def resolve(self, lane: str | None = None, **changes: Any) -> list[Json]:
        """The MCP servers of a request are known, and list their tools as far as that is necessary."""
        before = len(self.events)
        self.find_servers(lane, **changes)
        if any(turn.asked.lane == lane for turn in self.listings):
            self.list_tools(lane)
        return self.events[before:]

    def fetch(self, fetched: Fetched, lane: str | None = None) -> list[Json]:
        """The images that a request names by URL were fetched, or could not be."""
        turn = self._at(self.fetches, lane)
        work = self.fetches[turn]
        try:
            items = attachments.with_fetched_images(work.items, fetched)
        except InvalidRequest as error:
            return self.fail(lane, error)
        return self.done(self.fetches.pop(turn), items)

    def read_pages(self, read: ReadPages, lane: str | None = None) -> list[Json]:
        """The documents of a request were read."""
        work = self.reads.pop(self._at(self.reads, lane))
        return self.done(work, tuple(attachments.with_pages(item, read, work.roles) for item in work.items))

    def refuse_documents(self, error: InvalidRequest, lane: str | None = None) -> list[Json]:
        """The first document of a request could not be read."""
        work = self.reads[self._at(self.reads, lane)]
        index, document = next(
            (index, document)
            for index, item in enumerate(work.items)
            for document in attachments.documents_in(item)
        )
        return self.fail(lane, attachments.unreadable(work.items[index], index, document, error))

    def find_servers(self, lane: str | None = None, **changes: Any) -> list[Json]:
        """The MCP servers of a request are known. ``changes``: fields of all. Each built-in tool is answered
        by a tool of the same name: its ``q`` is what the model writes."""
        asked = self.resolves.pop(self._at(self.resolves, lane))
        servers = {}
        for server in asked.servers:
            label = server.server_label
            identity = server.server_url or label
            found = ResolvedServer(f"handle of {label}", identity=identity)
            servers[label] = structs.replace(found, **changes)
        answers = {
            kind: ResolvedBuiltin(ResolvedServer("handle of built-in tools"), kind, "q")
            for kind in asked.builtins
        }
        return self.done(asked, Resolved(servers, answers))

    def list_tools(self, lane: str | None = None) -> list[Json]:
        """All MCP servers that a request asks list their tools."""
        before = len(self.events)
        asked = self.listings[self._at(self.listings, lane)]
        for label in asked.servers:
            self.end_list(label, lane)
        if asked.turn in self.listings:
            self.end_lists(lane)
        return self.events[before:]

    def end_list(self, label: str, lane: str | None = None, fetched: FetchedList | None = None) -> list[Json]:
        """An MCP server has listed its tools."""
        asked = self.listings[self._at(self.listings, lane)]
        assert label in asked.servers
        found = FetchedList(self.server.lists[label]) if fetched is None else fetched
        actions = self.session.turns.listed(asked, label, found, self.server.now)
        if asked.turn.wait is not asked:
            self.listings.pop(asked.turn, None)
        return self._run(actions)

    def end_lists(self, lane: str | None = None) -> list[Json]:
        """No list is fetched any more."""
        return self.done(self.listings.pop(self._at(self.listings, lane)))

    def claim(self, lane: str | None = None) -> list[Json]:
        """Mark the approvals of a turn as used, or refuse it."""
        claim = self.claims.pop(self._at(self.claims, lane))
        ids = {(self.tenant, each) for each in claim.ids}
        if ids & self.server.used:
            error = InvalidRequest("Used.", param="input")
            return self._run(self.session.turns.failed(claim, error, self.server.now))
        self.server.used |= ids
        return self.done(claim)

    def end_call(self, call_id: str, output: str | None = "42", error: CallError | None = None) -> list[Json]:
        """A hosted call has ended."""
        action = self.calls.pop(call_id)
        self.over.append(action)
        outcome = CallOutcome(output) if error is None else CallOutcome(error=error)
        return self._run(self.session.turns.call_ended(action.turn, call_id, outcome, self.server.now))

    def report_progress(self, call_id: str, progress: float = 1.0, message: str | None = None) -> list[Json]:
        """The server of a hosted call reports progress."""
        report = CallProgress(progress, None, message)
        return self._run(self.session.turns.call_progressed(self.calls[call_id].turn, call_id, report))

    def end_prefill(self, response_id: str, tokens: int | None = 100) -> list[Json]:
        """The engine has prefilled so many tokens, or has failed."""
        return self._run(self.session.turns.prefilled(self.prefills.pop(response_id), tokens))

    def compress(self, count: int | None = None) -> list[Json]:
        """The items of the states that wait are compressed; ``count``: of so many of them."""
        action = self.compressions.pop(0)
        items = [state.compressed() for state in action.states[:count]]
        return self._run(self.session.turns.compressed(action, items))

    def complete(self, lane: str | None = None, text: str = "ok") -> Json:
        """Finish with a text (a warmup with nothing), save if needed; returns the response object."""
        self.finish(*([Text(text)] if self.job(lane).generate else []), lane=lane)
        if any(turn.asked.lane == lane for turn in self.saves):
            self.save(lane)
        response: Json = self.order.responses[-1]
        return response

    # The store.

    def load(self, lane: str | None = None) -> list[Json]:
        turn = self._at(self.loads, lane)
        wanted = self.loads.pop(turn)
        state = self.server.store.get((self.tenant, wanted.response_id or ""))
        own = (s.input + s.output for (tenant, _), s in self.server.store.items() if tenant == self.tenant)
        found = {item.id: item for items in own for item in items if item.id in wanted.item_ids}
        compared = self.server.store.get((self.tenant, wanted.compared_id or ""))
        return self.done(wanted, Loaded(state, found, compared=compared))

    def load_conversation(self, *items: Json, tip: str | None = None) -> list[Json]:
        """The store loads a conversation with these new items, which continues the response ``tip``."""
        turn = self._at(self.loads, None)
        wanted = self.loads.pop(turn)
        assert wanted.conversation_id is not None
        new = tuple(read_item(wire.encode(item), f"items[{n}]") for n, item in enumerate(items))
        state = self.server.store[self.tenant, tip] if tip is not None else None
        joined = Joined(wanted.conversation_id, 0, new)
        return self.done(wanted, Loaded(state, {}, joined))

    def save(self, lane: str | None = None) -> list[Json]:
        turn = self._at(self.saves, lane)
        save = self.saves.pop(turn)
        self.server.store[self.tenant, save.state.id] = save.state
        return self.done(save)

    # Failures and time.

    def fail(self, lane: str | None = None, error: ApiError | None = None) -> list[Json]:
        """The work on this lane's turn fails, whatever it is."""
        for work in self._work.values():
            for turn in [turn for turn in work if turn.asked.lane == lane]:
                self.over.append(work[turn])
                failed = self.session.turns.failed(work.pop(turn), error or ServerError(), self.server.now)
                return self._run(failed)
        raise LookupError(f"nothing runs on lane {lane!r}")

    def tick(self, seconds: float = 0.0) -> list[Json]:
        self.server.now += seconds
        return self._run(self.session.tick(self.server.now))

    def end(self, error: ApiError, *, code: int = 1001, grace_s: float = 30.0) -> list[Json]:
        return self._run(self.session.end(error, code=code, grace_s=grace_s, now=self.server.now))

    def hang_up(self) -> list[Json]:
        """The client disconnects; events that are sent after that are dropped."""
        self._has_left = True
        return self._run(self.session.leave(self.server.now)) + self._run(self.session.closed())

    # Implementation.

    def done(self, work: Work[Any], result: Any = None) -> list[Json]:
        """Work that the test has taken has ended."""
        self.over.append(work)
        return self._run(self.session.turns.done(work, result, self.server.now))

    def report_late(self, number: int) -> list[Json]:
        """A task reports although its work has ended or was cancelled: it was about to when that happened."""
        ended, turns, now = self.over[number], self.session.turns, self.server.now
        if isinstance(ended, CallTool):
            turn, call_id = ended.turn, ended.call.id
            late = turns.call_progressed(turn, call_id, CallProgress(1.0, None, None))
            late += turns.call_ended(turn, call_id, CallOutcome("late"), now)
        else:
            late = []
            if isinstance(ended, Generate) and (sent := emitted(self.session, ended, [Text("late")])):
                late = [Send(sent)]
            elif isinstance(ended, ListTools):
                late += turns.listed(ended, next(iter(ended.servers)), FetchedList(()), now)
            late += [*turns.done(ended, None, now), *turns.failed(ended, ServerError("Late."), now)]
        return self._run(late)

    def _at(self, work: Iterable[Turn], lane: str | None) -> Turn:
        found = [turn for turn in work if turn.asked.lane == lane]
        assert len(found) == 1, f"{len(found)} such turns on lane {lane!r}"
        return found[0]

    def _run(self, actions: list[Action]) -> list[Json]:
        before = len(self.events)
        if actions and isinstance(last := actions[-1], Flush):
            # A client cannot react to the end of a turn before the driver has reported this too.
            actions = [*actions[:-1], *self.session.turns.done(last, None, self.server.now)]
        for action in actions:
            assert not isinstance(action, Flush), "it is always the last action"
            assert self.close is None, f"{action} after Close"
            if isinstance(action, Send):
                if not self._has_left:
                    self._send(action)
            elif isinstance(action, Generate):
                self._start(action)
            elif isinstance(action, Work):
                self._work[type(action)][action.turn] = action
            else:
                self._carry_out(action)
        if (fault := self.fault) is not None:
            self.fault = None
            raise fault
        return self.events[before:]

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, CompileAppended):
            self.checks_appended.append(action)
        elif isinstance(action, CallTool):
            assert action.call.id not in self.calls, "a call is made twice"
            self.calls[action.call.id] = action
        elif isinstance(action, Cancel | CancelCalls):
            self._cancel(action)
        elif isinstance(action, Counted):
            self.counted.append(action.tokens)
        elif isinstance(action, _Beside):
            self._begin_beside(action)
        elif isinstance(action, Compress):
            self.compressions.append(action)
        elif isinstance(action, Record):
            self.reports.append(action)
        elif isinstance(action, LogFault):
            self.fault = action.fault
        elif isinstance(action, Close):
            self.close = action

    @property
    def _work(self) -> dict[type[Work[Any]], dict[Turn, Any]]:
        return {
            CompileGrammars: self.checks,
            CountTokens: self.weighs,
            Generate: self.starts,
            Load: self.loads,
            ResolveTools: self.resolves,
            FetchImages: self.fetches,
            ReadDocuments: self.reads,
            ListTools: self.listings,
            ClaimApprovals: self.claims,
            Save: self.saves,
        }

    def _cancel(self, action: Cancel | CancelCalls) -> None:
        turn = action.turn
        for call_id in [each for each, call in self.calls.items() if call.turn is turn]:
            self.over.append(self.calls.pop(call_id))
            self.cancelled_calls.append(call_id)
        if isinstance(action, Cancel):
            self.cancelled.append(turn)
            for work in self._work.values():
                self.over += [work.pop(turn)] if turn in work else []
            self.inspections = [each for each in self.inspections if each.turn is not turn]

    def _begin_beside(self, action: _Beside) -> None:
        """Begin, or end, work that runs beside the turns."""
        if isinstance(action, ReportOutput):
            self.heard[action.response_id] += 1
        elif isinstance(action, ReportSteer):
            self.steered[action.response_id] += 1
        elif isinstance(action, EndPrefill):
            del self.prefills[action.response_id]
        elif isinstance(action, StartPrefill):
            assert action.response_id not in self.prefills, "two prefills of one response"
            self.prefills[action.response_id] = action
        elif isinstance(action, StartAudit):
            self.audits.append(action)
        else:
            self.inspections.append(action)
            asked = action.inspection
            self.inspected += [(asked.when, each.kind, each.text) for each in asked.subjects]

    def _start(self, start: Generate) -> None:
        if start.job.parent is not None and not (start.job.fork or start.job.recognised):
            self.prefills.pop(start.job.parent.id, None)
        if (error := self._refuses(start.job)) is not None:
            self._run(self.session.turns.failed(start, error, self.server.now))
            return
        self.starts[start.turn] = start
        self._first_output[start.turn] = len(start.turn.output.items)
        if self._accepts(start.job):
            self._send(Send(emitted(self.session, start, [self.accepted])))
        if self._on_start is not None:
            self._on_start(start)

    def _send(self, send: Send) -> None:
        for event in send.events:
            frame = wire.encode(event)
            decoded = check_frame(frame, self._foreign_tools)
            self.frames.append(frame)
            self.events.append(decoded)
            self.order.see(decoded)
            if self._on_event is not None:
                self._on_event(decoded)


def emitted(session: Session, work: Generate, deltas: list[Delta]) -> list[Event]:
    """The events that deltas of an engine cause."""
    events: list[Event] = []
    session.turns.emitter(work, events.extend)(deltas)
    return events


def listed(name: str, *, read_only: bool | None = None) -> ListedTool:
    """A tool of an MCP server."""
    hints = None if read_only is None else ToolHints(read_only=read_only)
    return ListedTool(name=name, input_schema=Raw(b'{"type":"object"}'), annotations=hints)


def mcp(label: str = "s", **fields: Any) -> Json:
    """An MCP server whose tools need no approval."""
    return {"type": "mcp", "server_label": label, "require_approval": "never", **fields}


def types(events: Iterable[Json]) -> list[str]:
    """The types of events, without the common prefix."""
    return [event["type"].removeprefix("response.") for event in events]


def only_error(events: list[Json]) -> Json:
    """The error event; fails if there is any other event."""
    assert types(events) == ["error"]
    return events[0]


def message(text: str | list[Json], role: str = "user") -> Json:
    return {"type": "message", "role": role, "content": text}


def call_output(call_id: str, output: str = "42", kind: str = "function_call_output") -> Json:
    return {"type": kind, "call_id": call_id, "output": output}


def function(name: str, **fields: Any) -> Json:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **fields}


def context_of(job: Job) -> list[Json]:
    """The items of a job's context, oldest first."""
    return [json.loads(item.raw) for item in job.context()]


_HEAD = Head()


def verdicts_of(inspection: Inspection, flags: Mapping[str, str | None]) -> list[list[Verdict]]:
    """The verdicts of all checks, as `Connection.inspect` describes them."""

    def verdict(check: SafetyCheck, subject: Subject) -> Verdict:
        word = flags.get(check.name, "bad")
        if word is None:
            return Verdict(check.name, check.version, flagged=False, failed="it died")
        return Verdict(check.name, check.version, flagged=word in subject.text, ms=5.0)

    return [
        [verdict(check, subject) for check in checks_of(inspection.policy, subject, inspection.when)]
        for subject in inspection.subjects
    ]


def node(
    id: str,
    parent: ResponseState | None = None,
    *,
    text: str = "hi",
    input: tuple[Item, ...] | None = None,
    output: tuple[Item, ...] = (),
) -> ResponseState:
    """The state of a finished response, to ``input`` or a message of the user with ``text``."""
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
        input=(user_message(text),) if input is None else input,
        output=output,
        carry=parent.carry if parent is not None else Carry(),
    )


def line(length: int, first: str = "n0") -> list[ResponseState]:
    """A chain of this many nodes, oldest first."""
    nodes = [node(first)]
    for number in range(1, length):
        nodes.append(node(f"n{number}", nodes[-1]))
    return nodes
