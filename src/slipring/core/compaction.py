"""Compaction: a context that has grown long gives way to a summary of it.

Owns when that is due, what the model is asked for, and what is kept beside its summary. The summary is made
by an ordinary job that goes on from the same parent with the same head: an engine reads nothing twice. Knows
nothing of events and of how items are sealed.
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from slipring.core import lineage
from slipring.core.generation import Delta, Finished, Job, Model, Text
from slipring.core.state import Carry
from slipring.errors import InvalidRequest, ServerError
from slipring.protocol import requests
from slipring.protocol.items import ConfigurationUpdate, Item, Message, user_message
from slipring.protocol.requests import TEXT, CreateRequest
from slipring.protocol.tools import Offer

TRIGGER = "compaction_trigger"
_ASK = (
    "Stop here and write a summary of this conversation, so that somebody who has seen nothing else can go on"
    " with the work at once. Tell what was asked for, in its own words where they matter; what was decided,"
    " and why; what has been done and found out, with names, paths, numbers and the results of tools as they"
    " were; what is still open, and what was to be done next. Do not go on with the work itself and do not"
    " call tools. Write the summary and nothing else."
)
_LEAD = (
    "Summary of the conversation until here. All of it has given way to this summary, except for messages"
    " that are repeated word for word:\n\n"
)
_SUMMARY_START = user_message(_LEAD).raw[:-2]
"""How the message with a summary begins, as JSON."""
_SLACK_TOKENS = 1024
"""More than any template writes around items by itself."""
_SHORTEST_SUMMARY, _LONGEST_SUMMARY = 128, 8192
_MOST_KEPT_BYTES = 64 * 1024
_UNKNOWN_CONTEXT = 32 * 1024
_UNCOUNTABLE = (b'"input_image"', b'"input_file"')
"""What may be many tokens in few bytes."""


class Plan(Struct, frozen=True):
    """When a turn's context is to be compacted, and how far."""

    threshold: int
    """Tokens that are too many. Without one of its own, what the model can read stands for it."""
    alone: bool = False
    """Whether the compaction is all that is asked for."""

    @property
    def summary_tokens(self) -> int:
        return max(_SHORTEST_SUMMARY, min(self.threshold // 4, _LONGEST_SUMMARY))

    @property
    def kept_bytes(self) -> int:
        """How much may be kept word for word: about a quarter of the threshold, in tokens."""
        return min(self.threshold, _MOST_KEPT_BYTES)


def read_plan(request: CreateRequest, items: tuple[Item, ...], model: Model) -> Plan | None:
    """What a request wants compacted; None: nothing. A warmup compacts nothing."""
    entries = requests.read_management(request.context_management)
    triggers = [index for index, item in enumerate(items) if item.type == TRIGGER]
    if triggers:
        if triggers[0] != len(items) - 1:
            raise InvalidRequest(
                f"A '{TRIGGER}' has to be the last item of the input.", param=f"input[{triggers[0]}]"
            )
        if request.warms_up:
            raise InvalidRequest(
                f"A '{TRIGGER}' cannot be used with 'generate': false.", param=f"input[{triggers[0]}]"
            )
        return Plan(model.context_tokens or _UNKNOWN_CONTEXT, alone=True)
    given = [entry.compact_threshold for entry in entries]
    if None in given and model.context_tokens is None:
        param = f"context_management[{given.index(None)}].compact_threshold"
        raise InvalidRequest(
            f"Missing required parameter: '{param}'. How much this model can read is not known here.",
            param=param,
            code="missing_required_parameter",
        )
    if not given or request.warms_up:
        return None
    usual = (model.context_tokens or 0) * 4 // 5
    return Plan(max(1, min(usual if tokens is None else tokens for tokens in given)))


class Compaction:
    """The compaction of one turn's context, from the question whether it is due to what is left of it."""

    __slots__ = ("_carry", "_job", "_pieces", "finished", "is_running", "plan")

    def __init__(self, plan: Plan, job: Job, carry: Carry) -> None:
        """``job``: what the turn would do with the context as it is; ``carry``: of that context."""
        self.plan = plan
        self.is_running = False
        """Whether the summary is being made."""
        self.finished: Finished | None = None
        """What the summary took, once it is there."""
        self._job = job
        self._carry = carry
        self._pieces: list[str] = []

    def must_weigh(self) -> bool:
        """Whether the tokens have to be counted: they are known to be too few only from a safe distance."""
        if self.plan.alone:
            return False
        job, parent = self._job, self._job.parent
        before: int | None = 0
        if parent is not None:
            # Another model counts by other tokens.
            before = parent.tokens if parent.response.model == job.model.name else None
        if before is None or any(mark in item.raw for item in job.input for mark in _UNCOUNTABLE):
            return True
        new = sum(len(item.raw) for item in job.input)
        if parent is None or parent.head != job.head:
            new += len(bytes(job.head.instructions_json)) + len(job.head.tools.raw)
        # A token is a byte at least.
        return before + new + _SLACK_TOKENS >= self.plan.threshold

    def is_due(self, tokens: int) -> bool:
        return self.plan.alone or tokens >= self.plan.threshold

    def summary_job(self) -> Job:
        """Ask for the summary."""
        self.is_running = True
        job = self._job
        settings = structs.replace(
            job.settings,
            format=TEXT,
            logprobs=False,
            top_logprobs=0,
            max_output_tokens=self.plan.summary_tokens,
        )
        return structs.replace(
            job, input=(*job.input, user_message(_ASK)), offer=Offer(forbidden=True), settings=settings
        )

    def take(self, deltas: list[Delta]) -> None:
        """Listen to the summary. What the model thinks on the way is not part of it."""
        for delta in deltas:
            if isinstance(delta, Text):
                self._pieces.append(delta.text)
            elif isinstance(delta, Finished):
                self.finished = delta

    def conclude(self) -> tuple[Item, ...]:
        """The summary is there: what the context is from now on."""
        summary = "".join(self._pieces).strip()
        self.is_running = False
        if self.finished is None:
            raise RuntimeError("the engine ended its stream without a Finished delta")
        if not summary or self.finished.reason == "content_filter":
            # To go on without would be to forget everything, and not to say so.
            raise ServerError("The context could not be compacted: the model gave no summary.")
        return condensed(tuple(self._job.context()), summary, self._carry, self.plan.kept_bytes)

    def job_after(self, items: tuple[Item, ...]) -> Job:
        """What the turn set out to do, with what is left of the context."""
        return structs.replace(self._job, parent=None, input=items, fork=False)

    def together(self, finished: Finished) -> Finished:
        """The end of a turn, with the tokens of its summary too, if that was not all."""
        spent = self.finished
        if spent is None or self.plan.alone:
            return finished
        return structs.replace(
            finished,
            input_tokens=spent.input_tokens + finished.input_tokens,
            cached_tokens=spent.cached_tokens + finished.cached_tokens,
            output_tokens=spent.output_tokens + finished.output_tokens,
            reasoning_tokens=spent.reasoning_tokens + finished.reasoning_tokens,
        )


def condensed(context: tuple[Item, ...], summary: str, carry: Carry, kept_bytes: int) -> tuple[Item, ...]:
    """What stands for a context: its tools and settings, the newest messages of its user, the summary, and
    the calls that nobody has answered yet.

    The summary stands where the work does: behind the messages that were worked on, before those that still
    wait for an answer.
    """
    places = [index for index, item in enumerate(context) if not is_users(item)]
    answered = places[-1] if places else -1
    kept = _newest_messages(context, kept_bytes)
    calls = {
        item.call_id: item
        for item in context
        if item.call_id is not None and lineage.is_call(item) and _stays_open(item, carry)
    }
    return (
        *dict.fromkeys(item for item in context if item.type == "additional_tools"),
        *_settings_of(context),
        *(context[index] for index in kept if index < answered),
        user_message(_LEAD + summary),
        *(context[index] for index in kept if index > answered),
        *calls.values(),
    )


def is_users(item: Item) -> bool:
    """Whether it is a message of the user's own, and not a summary that we have put there."""
    if item.type != "message" or item.raw.startswith(_SUMMARY_START):
        return False
    body = item.body()
    return isinstance(body, Message) and body.role == "user"


def _newest_messages(context: tuple[Item, ...], most_bytes: int) -> list[int]:
    """Where the newest messages of the user are that fit, oldest first."""
    places: list[int] = []
    left = most_bytes
    for index in range(len(context) - 1, -1, -1):
        if is_users(context[index]):
            left -= len(context[index].raw)
            if left < 0:
                break
            places.insert(0, index)
    return places


def _settings_of(context: Iterable[Item]) -> list[Item]:
    """The updates of the configuration that are in force: the last of each thing that can be set."""
    latest: dict[str, Item] = {}
    for item in context:
        if item.type == "configuration_update":
            update = item.body()
            assert isinstance(update, ConfigurationUpdate)
            changes = {"effort": update.reasoning, "format": update.text}
            latest = {**latest, **{name: item for name, change in changes.items() if change is not None}}
    return [item for item in context if any(item is kept for kept in latest.values())]


def _stays_open(call: Item, carry: Carry) -> bool:
    """Whether a call is still open, and would be so again: fragments that only their response knew to be cut
    off would come back as calls that demand an answer."""
    return carry.open_calls.get(call.call_id or "") == lineage.opening(call)
