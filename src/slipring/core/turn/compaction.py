"""Compaction: a context that has grown long gives way to a summary of it.

Owns when that is due, what the model is asked for, and what is kept beside its summary. The summary is made
by an ordinary job that goes on from the same parent with the same head: an engine reads nothing twice. Knows
nothing of events and of how items are sealed.
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from slipring.core.chain import lineage
from slipring.core.chain.state import Carry, OpenCall
from slipring.core.generation import Delta, Finished, Job, Model, Text
from slipring.errors import InvalidRequest, ServerError
from slipring.protocol import requests, wire
from slipring.protocol.items import ConfigurationUpdate, Item, Message, kept_tools, user_message
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
        # Servers refuse a context in which a call waits for its output.
        waiting = (_unanswered(call_id, call) for call_id, call in self._carry.open_calls.items())
        asked = (*job.input, *filter(None, waiting), user_message(_ASK))
        return structs.replace(job, input=asked, offer=Offer(forbidden=True), settings=settings)

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
        context, parent = tuple(self._job.context()), self._job.parent
        # Of a history that a client sends itself, what was answered can only be told from its order.
        seen = len(context) - len(self._job.input) if parent is not None else len(context)
        return condensed(context, seen, summary, self._carry, self.plan.kept_bytes)

    def job_after(self, items: tuple[Item, ...]) -> Job:
        """What the turn set out to do, with what is left of the context."""
        return structs.replace(self._job, parent=None, input=items, fork=False)

    def together(self, finished: Finished) -> Finished:
        """The end of a turn, with the tokens of its summary too, if that was not all."""
        spent = self.finished
        if spent is None or self.plan.alone:
            return finished
        return finished.after(spent)


def condensed(
    context: tuple[Item, ...], seen: int, summary: str, carry: Carry, kept_bytes: int
) -> tuple[Item, ...]:
    """What stands for a context: its tools and settings, the newest messages of those who gave orders, the
    summary, what still waits for an answer, and the calls that nobody has answered yet.

    ``seen``: how many of the items the model has had before. The summary stands where the work does: behind
    the messages that were worked on. What came after is kept word for word, however long it is: nobody has
    done anything about it yet.
    """
    done = [index for index, item in enumerate(context[:seen]) if _is_work(item)]
    worked_on = done[-1] + 1 if done else 0
    calls = {
        item.call_id: item
        for item in context
        if item.call_id is not None and lineage.is_call(item) and _stays_open(item, carry)
    }
    brought = (kept_tools(item) for item in reversed(context))
    tools = dict.fromkeys(item for item in brought if item is not None)
    return (
        *reversed(tools),
        *_settings_of(context),
        *_newest_messages(context[:worked_on], kept_bytes, ("system", "developer")),
        *_newest_messages(context[:worked_on], kept_bytes, ("user",)),
        user_message(_LEAD + summary),
        *(item for item in context[worked_on:] if _is_wish(item)),
        *calls.values(),
    )


def _is_wish(item: Item) -> bool:
    return item.type == "message" and not _is_work(item)


def _unanswered(call_id: str, call: OpenCall) -> Item | None:
    """What a summary is told of a call that waits for its output."""
    if call.type == "tool_search_call":
        raw = wire.encode({"type": "tool_search_output", "call_id": call_id, "tools": []})
        return Item(type="tool_search_output", raw=raw, call_id=call_id)
    if call.type not in ("function_call", "custom_tool_call"):
        return None
    kind = f"{call.type}_output"
    raw = wire.encode({"type": kind, "call_id": call_id, "output": "(there is no output yet)"})
    return Item(type=kind, raw=raw, call_id=call_id)


def _is_work(item: Item) -> bool:
    """Whether it is the model's, or came of what the model did; and not somebody's wish or a setting."""
    if item.type in ("additional_tools", "configuration_update"):
        return False
    if item.type != "message" or item.raw.startswith(_SUMMARY_START):
        return True
    body = item.body()
    return isinstance(body, Message) and body.role == "assistant"


def is_users(item: Item) -> bool:
    """Whether it is a message of the user's own, and not a summary that we have put there."""
    return _role_of(item) == "user"


def _role_of(item: Item) -> str | None:
    if item.type != "message" or item.raw.startswith(_SUMMARY_START):
        return None
    body = item.body()
    return body.role if isinstance(body, Message) else None


def _newest_messages(context: tuple[Item, ...], most_bytes: int, roles: tuple[str, ...]) -> list[Item]:
    """The newest messages in these roles that fit, oldest first."""
    kept: list[Item] = []
    left = most_bytes
    for item in reversed(context):
        if _role_of(item) in roles and len(item.raw) <= left:
            left -= len(item.raw)
            kept.append(item)
    return kept[::-1]


def _settings_of(context: Iterable[Item]) -> list[Item]:
    """The updates of the configuration that are in force: the last of each thing that can be set."""
    latest: dict[str, Item] = {}
    for item in context:
        if item.type == "configuration_update":
            update = item.body()
            assert isinstance(update, ConfigurationUpdate)
            if update.reasoning is not None and update.reasoning.effort is not None:
                latest["effort"] = item
            if update.text is not None and wire.given(update.text.format) is not None:
                latest["format"] = item
    return [item for item in context if any(item is kept for kept in latest.values())]


def _stays_open(call: Item, carry: Carry) -> bool:
    """Whether a call is still open, and would be so again: fragments that only their response knew to be cut
    off would come back as calls that demand an answer."""
    return carry.open_calls.get(call.call_id or "") == lineage.opening(call)
