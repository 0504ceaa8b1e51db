"""Compaction: replaces a long context by a summary that the model writes.

Decides when a context is compacted, builds the job that asks for the summary, and selects the items that are
kept verbatim beside it. The summary is an ordinary job with the same parent and head as the turn's own, so
the engine reuses the context it has already processed.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from slipring.base.errors import InvalidRequest, ServerError
from slipring.core.chain import input_items
from slipring.core.chain.hosted_items_in_context import output_item
from slipring.core.chain.state import Carry, OpenCall
from slipring.core.generation import Delta, Finished, Job, Model, Stop, Text
from slipring.protocol import requests, wire
from slipring.protocol.items.item_pictures import role_of, without_images
from slipring.protocol.items.items import ConfigurationUpdate, Item, kept_tools, user_message
from slipring.protocol.requests import TEXT, CreateRequest
from slipring.protocol.tools.tool_choice import Offer

TRIGGER = "compaction_trigger"
_ASK = (
    "Stop here and write a summary of this conversation, so that somebody who has seen nothing else can go on"
    " with the work at once. Tell what was asked for, in its own words where they matter; what was decided,"
    " and why; what has been done and found out, with names, paths, numbers and the results of tools as they"
    " were, and what images show; what is still open, and what was to be done next. Do not go on with the"
    " work itself and do not call tools. Write the summary and nothing else."
)
_LEAD = (
    "Summary of the conversation until here. All of it has given way to this summary, except for messages"
    " that are repeated word for word:\n\n"
)
_SUMMARY_START = user_message(_LEAD).raw[:-2]
"""The JSON prefix of a summary's message."""
_NO_OUTPUT = "(there is no output yet)"
_SLACK_TOKENS = 1024
"""More than any template adds around items."""
_SHORTEST_SUMMARY, _LONGEST_SUMMARY = 128, 8192
_SHORTEST_TEXT = 200
"""Characters that any summary may have."""
_MOST_KEPT_BYTES = 64 * 1024
_UNKNOWN_CONTEXT = 32 * 1024
_UNCOUNTABLE = (b'"input_image"', b'"input_file"')
"""Content that may take many tokens for few bytes."""


class Plan(Struct, frozen=True):
    """When and how far a turn's context is compacted."""

    threshold: int
    """Compact at this many tokens. For a requested compaction: the model's context window."""
    alone: bool = False
    """Whether the request asks for a compaction and no answer."""

    @property
    def summary_tokens(self) -> int:
        return max(_SHORTEST_SUMMARY, min(self.threshold // 4, _LONGEST_SUMMARY))

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages to keep verbatim: about a quarter of the threshold, in tokens."""
        return min(self.threshold, _MOST_KEPT_BYTES)


def read_plan(request: CreateRequest, items: tuple[Item, ...], model: Model) -> Plan | None:
    """The compaction that a request asks for; None if it asks for none, or is a warmup."""
    entries = requests.read_management(request.context_management)
    triggers = [index for index, item in enumerate(items) if item.type == TRIGGER]
    if triggers:
        if triggers[0] != len(items) - 1:
            raise InvalidRequest(
                f"A '{TRIGGER}' must be the last item of the input.", param=f"input[{triggers[0]}]"
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
            f"Missing required parameter: '{param}'. This server does not know the model's context window.",
            param=param,
            code="missing_required_parameter",
        )
    if not given or request.warms_up:
        return None
    usual = (model.context_tokens or 0) * 4 // 5
    return Plan(max(1, min(usual if tokens is None else tokens for tokens in given)))


class Compaction:
    """The compaction of one turn's context."""

    __slots__ = (
        *("_carry", "_continues", "_most_chars", "_pieces", "_stop", "_written"),
        *("finished", "is_done", "is_running", "job", "plan"),
    )

    def __init__(self, plan: Plan, job: Job, carry: Carry, *, continues: bool) -> None:
        """``job``: the turn's own job, with the full context; ``carry``: of that context; ``continues``:
        whether the client has named the response that the job continues."""
        self.plan = plan
        self.is_running = False
        """Whether the engine is writing the summary."""
        self.finished: Finished | None = None
        """The end of the summary's job."""
        self.is_done = False
        """Whether the summary has replaced the context."""
        self.job = job
        """The turn's own job, with the context that it has now."""
        self._carry = carry
        self._continues = continues
        self._pieces: list[str] = []
        self._written = 0
        before = job.parent.context_bytes if job.parent is not None else 0
        replaced = before + sum(len(item.raw) for item in job.input)
        self._most_chars = max(_SHORTEST_TEXT, replaced)
        """The length of what is replaced: a summary is not longer. The limit in tokens cannot do that: it has
        to leave room for reasoning."""
        self._stop = Stop()

    def must_weigh(self) -> bool:
        """Whether the engine must count the tokens: not if an upper bound is below the threshold."""
        if self.plan.alone:
            return False
        job, parent = self.job, self.job.parent
        before: int | None = 0
        if parent is not None:
            # Token counts of another model do not apply.
            before = parent.tokens if parent.response.model == job.model.name else None
        if before is None or any(mark in item.raw for item in job.input for mark in _UNCOUNTABLE):
            return True
        new = sum(len(item.raw) for item in job.input)
        if parent is None or parent.head != job.head:
            new += len(bytes(job.head.instructions_json)) + len(job.head.tools.raw)
        # A token is at least one byte.
        return before + new + _SLACK_TOKENS >= self.plan.threshold

    def is_due(self, tokens: int) -> bool:
        """Whether to compact a context of this many tokens."""
        return self.plan.alone or tokens >= self.plan.threshold

    def summary_job(self) -> Job:
        """Begin: the job that asks the model for the summary."""
        self.is_running = True
        job = self.job
        settings = structs.replace(
            job.settings,
            format=TEXT,
            logprobs=False,
            top_logprobs=0,
            max_output_tokens=self.plan.summary_tokens,
        )
        # Upstream servers refuse a context with a call that has no output.
        waiting = (_placeholder_output(call_id, call) for call_id, call in self._carry.open_calls.items())
        asked = (output_item(request_id, _NO_OUTPUT) for request_id in self._carry.approvals)
        items = (*job.input, *waiting, *asked, user_message(_ASK))
        return structs.replace(
            job,
            input=items,
            offer=Offer(forbidden=True),
            settings=settings,
            stop=self._stop,
            is_summary=True,
        )

    def take(self, deltas: list[Delta]) -> None:
        """Collect the text of the summary; reasoning is ignored. Asks the engine to stop when the text is as
        long as what it replaces."""
        for delta in deltas:
            if isinstance(delta, Text):
                self._pieces.append(delta.text)
                self._written += len(delta.text)
                self._stop.asked = self._written >= self._most_chars
            elif isinstance(delta, Finished):
                self.finished = delta

    @property
    def written_chars(self) -> int:
        """The length of the summary so far."""
        return self._written

    def conclude(self) -> tuple[Item, ...]:
        """End: replace the context of the job. Returns the items that it has now. Raises ``ServerError`` if
        there is no usable summary."""
        summary = "".join(self._pieces).strip()[: self._most_chars]
        self.is_running = False
        if self.finished is None:
            raise RuntimeError("the engine ended its stream without a Finished delta")
        if not summary or self.finished.reason == "content_filter":
            # Continuing without a summary would silently drop the whole context.
            raise ServerError("The context could not be compacted: the model wrote no summary.")
        context = tuple(self.job.context())
        # In a history that the client sends itself, only the order shows what was answered.
        seen = len(context) - len(self.job.input) if self._continues else len(context)
        items = condensed(context, seen, summary, self._carry, self.plan.kept_bytes)
        self.job = structs.replace(self.job, parent=None, input=items, fork=False, recognised=False)
        self.is_done = True
        return items

    def together(self, finished: Finished) -> Finished:
        """The end of the turn, with the tokens of the summary added unless the turn was only a compaction."""
        spent = self.finished
        if spent is None or self.plan.alone:
            return finished
        return finished.after(spent)


def condensed(
    context: tuple[Item, ...], seen: int, summary: str, carry: Carry, kept_bytes: int
) -> tuple[Item, ...]:
    """The items that replace a context, in this order: its tools, its settings, the newest system and user
    messages that were answered, the summary, the messages that were not answered, the open calls.

    ``seen``: the number of items that the model has processed before. Messages after the model's last output
    among them are unanswered and kept verbatim, whatever their length.
    """
    outputs = [index for index, item in enumerate(context[:seen]) if _is_model_output(item)]
    answered = outputs[-1] + 1 if outputs else 0
    calls = {
        item.call_id: item
        for item in context
        if item.call_id is not None and input_items.is_call(item) and _stays_open(item, carry)
    }
    added_tools = (kept_tools(item) for item in reversed(context))
    tools = dict.fromkeys(item for item in added_tools if item is not None)
    return (
        *reversed(tools),
        *_settings_of(context),
        *_newest_messages(context[:answered], kept_bytes, ("system", "developer")),
        *_newest_messages(context[:answered], kept_bytes, ("user",)),
        user_message(_LEAD + summary),
        *(item for item in context[answered:] if item.type == "message" and not _is_model_output(item)),
        *calls.values(),
    )


def _placeholder_output(call_id: str, call: OpenCall) -> Item:
    """An output for an open call, so that the summary's context is valid."""
    if call.type == "tool_search_call":
        raw = wire.encode({"type": "tool_search_output", "call_id": call_id, "tools": []})
        return Item(type="tool_search_output", raw=raw, call_id=call_id)
    # A model reads the outputs of all calls as texts, whatever forms clients have for them.
    kind = "custom_tool_call_output" if call.type == "custom_tool_call" else "function_call_output"
    raw = wire.encode({"type": kind, "call_id": call_id, "output": _NO_OUTPUT})
    return Item(type=kind, raw=raw, call_id=call_id)


def _is_model_output(item: Item) -> bool:
    """Whether the model produced the item or caused it (tool outputs), or it is one of our summaries."""
    if item.type in ("additional_tools", "configuration_update"):
        return False
    if item.type != "message" or is_summary(item):
        return True
    return role_of(item) == "assistant"


def is_summary(item: Item) -> bool:
    """Whether the item begins as our summaries do. Clients can write such a message, too."""
    return item.raw.startswith(_SUMMARY_START)


def is_users(item: Item) -> bool:
    """Whether it is a message of the user, and not one of our summaries."""
    return _role_of(item) == "user"


def _role_of(item: Item) -> str | None:
    if item.type != "message" or is_summary(item):
        return None
    return role_of(item)


def _newest_messages(context: tuple[Item, ...], most_bytes: int, roles: tuple[str, ...]) -> list[Item]:
    """The newest messages in these roles that fit into ``most_bytes``, oldest first. In place of each image
    stands what it was."""
    kept: list[Item] = []
    left = most_bytes
    for item in reversed(context):
        if _role_of(item) not in roles:
            continue
        item = without_images(item)
        if len(item.raw) <= left:
            left -= len(item.raw)
            kept.append(item)
    return kept[::-1]


def _settings_of(context: Sequence[Item]) -> list[Item]:
    """The ``configuration_update`` items in force: the last one for each setting. The same item may stand in
    a context more than once."""
    latest: dict[str, int] = {}
    for index, item in enumerate(context):
        if item.type == "configuration_update":
            update = item.body()
            assert isinstance(update, ConfigurationUpdate)
            if update.reasoning is not None and update.reasoning.effort is not None:
                latest["effort"] = index
            if update.text is not None and wire.given(update.text.format) is not None:
                latest["format"] = index
    return [context[index] for index in sorted(set(latest.values()))]


def _stays_open(call: Item, carry: Carry) -> bool:
    """Whether a call is open and would be read back as the same open call. A cut-off call is dropped: read
    back, it would require an output."""
    return carry.open_calls.get(call.call_id or "") == input_items.opening(call)
