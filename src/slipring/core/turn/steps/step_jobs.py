"""The steps of one response: after its model has called tools, the response continues with their outputs.

A rollout continues with outputs that its client appends, a response with hosted tools with the results of its
calls. ``Steps`` owns the jobs: each one continues the step before as a response continues its parent, so an
engine processes the outputs alone.
"""

from msgspec import structs

from slipring.core.chain.state import Carry, Position, ResponseState
from slipring.core.generation import Finished, Job, Stop, UpstreamTools
from slipring.core.hosted_tools import HostedTools
from slipring.core.turn import response_object
from slipring.protocol.items.items import CALL_OF_OUTPUT, Item
from slipring.protocol.responses import Response
from slipring.protocol.tools.tool_choice import Offer, ToolChoice
from slipring.protocol.tools.toolset import merged
from slipring.protocol.turn_report import StepCounts

_MOST_COUNTS = 100
"""Steps whose counts are reported one by one; later ones are added to the last."""


class Steps:
    """The jobs of one response, and their input."""

    __slots__ = (
        "_choice",
        "_input",
        "_job",
        "_node",
        "_unread",
        "begun_with",
        "counts",
        "is_last",
        "is_paused",
        "size_bytes",
        "spent",
    )

    def __init__(self, job: Job, choice: ToolChoice) -> None:
        self.size_bytes = 0
        """Of all generated and added items."""
        self.spent: Finished | None = None
        """Token counts of the finished steps; None before the first has ended."""
        self.counts: list[StepCounts] = []
        """Of each finished step."""
        self.is_last = False
        """While paused: whether the response ends when its hosted calls have."""
        self.begun_with: int | None = None
        """How many output items there were when the running step began; None before the second step."""
        self._choice = choice
        self.begin(job)

    def begin(self, job: Job) -> None:
        """``job`` is the first job of the response."""
        self._job = job
        self._input = job.input
        """Input of the running step, or of the next one while paused."""
        self._node = job.parent
        """The state that this step continues."""
        self._unread = len(job.parent.unread) if job.parent is not None else 0
        """How many items of the input that state counts as its own."""
        self.is_paused = False
        """Whether the last step has ended, or approved calls run, and the next one has not begun."""

    def wait_for_approved(self) -> None:
        """Calls that the client has approved run before the first step."""
        self.is_paused = True

    @property
    def max_output_tokens(self) -> int | None:
        """The bound on the output tokens of all steps together."""
        return self._job.settings.max_output_tokens

    def make_last(self) -> None:
        """No step follows."""
        self.is_last = True

    def grow(self, items: tuple[Item, ...]) -> None:
        """Count items that were generated or added."""
        self.size_bytes += sum(item.size_bytes for item in items)

    def end(
        self,
        generated: tuple[Item, ...],
        finished: Finished,
        response: Response,
        carry: Carry,
        *,
        is_last: bool,
    ) -> None:
        """A step has ended; ``carry`` is that of the context after it. ``is_last``: no step follows it."""
        self.is_last = is_last
        self._node = ResponseState(
            response=structs.replace(response, usage=response_object.usage(finished)),
            parent=self._node,
            head=self._job.head,
            input=self._input[self._unread :],
            output=generated,
            carry=carry,
            position=finished.position,
            fork=self._job.fork and self._node is self._job.parent,
        )
        self._input = ()
        self._unread = 0
        self.is_paused = True
        self.count(finished)
        self.spent = finished if self.spent is None else finished.after(self.spent)

    def count(self, finished: Finished) -> None:
        """Note the tokens of a step."""
        counts = StepCounts(finished.input_tokens - finished.cached_tokens, finished.output_tokens)
        if len(self.counts) < _MOST_COUNTS:
            self.counts.append(counts)
        else:
            self.counts[-1] = self.counts[-1].plus(counts)

    def add(self, items: tuple[Item, ...]) -> None:
        """Add outputs to the input of the next step."""
        self._input += items

    def replace_input(self, items: tuple[Item, ...]) -> None:
        """Replace the input of the next step."""
        self._input = items

    def withdraw(self, count: int) -> Carry:
        """Pause again instead of the step that was to begin, without the last ``count`` items of its input.
        Returns the carry after the last finished step."""
        assert self._node is not None
        self._input, self.is_paused = self._input[: len(self._input) - count], True
        return self._node.carry

    def total(self, finished: Finished) -> Finished:
        """The end of the response, with the tokens of all steps."""
        spent = self.spent
        if spent is None:
            return finished
        if not self.is_paused:
            self.count(finished)
            return finished.after(spent)
        # A response that waited for its client and got nothing has ended whole.
        ended = structs.replace(spent, reason=finished.reason if self.is_last else "stop")
        if not self._input:
            return ended
        # The engine has processed nothing that was added since the last step.
        return structs.replace(ended, position=self.position)

    @property
    def unanswered(self) -> int | None:
        """Where in the output the last step begins, if the response has ended before a step that would have
        processed what the calls of that one returned; else None."""
        return (self.begun_with or 0) if self.is_paused and self._input else None

    @property
    def position(self) -> Position | None:
        """The engine's position after the last finished step, with which the response can be continued.
        Outputs that were added since are the state's ``unread``; with anything else, the position is not that
        of the context."""
        if self.spent is None or any(item.type not in CALL_OF_OUTPUT for item in self._input):
            return None
        return self.spent.position

    def next_job(self, carry: Carry, hosted: HostedTools | None, begun_with: int) -> Job:
        """The job of the next step, with what is left of the bound on tokens. ``hosted``: tools that may not
        be called any more. ``begun_with``: how many output items there are."""
        self.is_paused, self.begun_with = False, begun_with
        job, settings = self._job, self._job.settings
        if settings.max_output_tokens is not None and self.spent is not None:
            left = settings.max_output_tokens - self.spent.output_tokens
            settings = structs.replace(settings, max_output_tokens=left)
        offer = job.offer if self.spent is None else self.offer(carry)
        if hosted is not None:
            tools = tuple(tool for tool in offer.tools if hosted.find(tool.namespace, tool.name) is None)
            required = offer.required and bool(tools)
            offer = structs.replace(offer, tools=tools, required=required, forbidden=not tools)
        return structs.replace(
            job,
            parent=self._node,
            input=self._input,
            offer=offer,
            settings=settings,
            fork=job.fork and self.spent is None,
            recognised=job.recognised and self.spent is None,
            began=None if self.spent is None else job,
            upstream_tools=self._upstream_tools(),
        )

    def _upstream_tools(self) -> UpstreamTools | None:
        """What the engine's server gets of its tools: a call that ``tool_choice`` requires is required
        once."""
        tools = self._job.upstream_tools
        if tools is None or self.spent is None or tools.choice in (None, b'"none"'):
            return tools
        return structs.replace(tools, choice=None)

    def foreseen_job(self, ready: tuple[Item, ...] = ()) -> Job:
        """While paused: a warmup of the next step, as far as its input is known. ``ready``: outputs that will
        be added next."""
        return structs.replace(
            self._job,
            parent=self._node,
            input=self._input + ready,
            generate=False,
            fork=False,
            recognised=False,
            stop=Stop(),
        )

    def offer(self, carry: Carry) -> Offer:
        """The tools of the next step. Raises if ``tool_choice`` names a tool that is not among them."""
        return self._choice.once_called.offer(merged(self._job.head.tools.callables, carry.tools))
