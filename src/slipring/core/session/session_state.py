"""What the turns of one session share: its limits and dependencies, its memory, and its outgoing actions."""

from slipring.core.betas import Betas
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.policies import Policies
from slipring.core.generation import Models
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session.actions import Action, CallTool, Compress, Inspect, Record, Send
from slipring.core.session.connection_lifetime import ConnectionLifetime
from slipring.core.session.growing_tool_outputs import GrowingOutputs
from slipring.core.session.lanes import Lanes
from slipring.core.session.request_charges import Charges
from slipring.core.session.steers import Successors
from slipring.core.turn import endings, turn_reports
from slipring.core.turn.turn import Turn
from slipring.protocol.events import Event
from slipring.protocol.turn_report import TurnReport


class SessionState:
    """One per session. ``now`` is the time of the call that the session is in."""

    __slots__ = (
        "actions",
        "asks_each_turn",
        "betas",
        "cache",
        "charges",
        "counts_only",
        "growing_outputs",
        "lanes",
        "lifetime",
        "limits",
        "models",
        "now",
        "policies",
        "ports",
        "successors",
        "tenant",
    )

    def __init__(
        self,
        tenant: str,
        models: Models,
        limits: Limits,
        ports: Ports,
        cache: ConnectionCache,
        now: float,
        betas: Betas,
        policies: Policies,
    ) -> None:
        self.tenant = tenant
        self.models = models
        self.limits = limits
        self.ports = ports
        self.betas = betas
        self.policies = policies
        self.now = now
        self.lifetime = ConnectionLifetime(limits, now)
        self.asks_each_turn = False
        """Whether every turn begins with a ``Load``, even an empty one, so that the driver can refuse it."""
        self.counts_only = False
        """Whether turns count the tokens of their context (``Counted``) and generate nothing."""
        self.cache = cache
        self.lanes = Lanes(limits.max_in_flight, limits.max_lanes)
        self.charges = Charges(ports.requests, tenant)
        self.successors = Successors(limits, ports, models, self.charges, self.lanes)
        self.growing_outputs = GrowingOutputs(tenant, self.lanes, limits, self.charges, models, policies)
        self.actions: list[Action] = []
        """What the driver has to do after the current call."""

    def take_actions(self) -> list[Action]:
        """What the driver has to do now, in order."""
        actions, self.actions = self.actions, []
        return actions

    def send(self, events: list[Event]) -> None:
        """Send events to the client."""
        if events:
            self.actions.append(Send(events))

    def begin_due(self, turn: Turn) -> None:
        """Begin the inspections and the hosted calls of a turn that can begin now."""
        if turn.checks is not None:
            self.actions += [Inspect(turn, each) for each in turn.checks.gate.take_due()]
        if turn.has_due_calls:
            self.actions += [CallTool(turn, call) for call in turn.take_due_calls()]

    def remember(self, turn: Turn, state: ResponseState) -> None:
        """Let later turns continue a response, by its id or by its items."""
        self.cache.remember(state, turn.asked.lane)
        if not self.betas.keeps_nothing and not turn.has_failed:
            endings.remember(turn, state, self.now)
            self.ports.heads.remember(turn.asked.tenant, turn.asked.request.model, state.head, self.now)
            if state.parent is None:
                self.ports.items.remember(turn.asked.tenant, turn.asked.request.pieces, self.now)
        self.compress(self.cache)

    def compress(self, cache: ConnectionCache) -> None:
        """Have items of earlier responses compressed, if there are enough of them."""
        if states := cache.take_compressible():
            self.actions.append(Compress(cache, tuple(states)))

    def record(self, turn: Turn, report: TurnReport) -> None:
        """Log and count an ended turn."""
        content = turn if turn_reports.may_record_content(turn, self.betas, self.policies) else None
        record = Record(turn.asked.lane, report, turn.stages.arrived, turn_reports.traceparent(turn), content)
        self.actions.append(record)
