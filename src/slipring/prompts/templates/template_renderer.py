"""Renders contexts with the model's own chat template, by delta where the template allows it.

A template renders whole conversations. To find what it adds for new messages, the renderer lets it render a
stand-in for the earlier messages twice, alone and with the new messages (``Addition``). The difference is the
delta, at a cost that does not grow with the conversation; only for templates that number calls it grows with
these. If the first output is not a prefix of the second, or they do not meet at a control token, the renderer
raises ``CannotAppend`` and all items are rendered.

A context keeps which of its reasoning items have thoughts that its tokens lack (``Tail.unwritten``).
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise, takewhile

from msgspec import UNSET, Struct, UnsetType, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Job, Settings
from slipring.prompts.fallback_reasons import (
    ASKED_TO_DROP,
    CONTEXT_CHANGED,
    CONTINUES_ASSISTANT,
    COUNTS_MESSAGES,
    DROPS_THOUGHTS,
    EFFORT_CHANGED,
    HEAD_CHANGED,
    MOVES_EARLIER,
    NO_BOUNDARY,
    OPENED_OTHERWISE,
    REFUSES_PART,
    REWRITES_EARLIER,
    CannotAppend,
)
from slipring.prompts.parsing.output_format import NamedJsonCalls, has_call_ids, written_call_ids
from slipring.prompts.rendering import LOOP_THOUGHTS, Preface, Rendered, Renderer, empty
from slipring.prompts.templates.chat_messages import (
    INLINE_PICTURES,
    ChatMessage,
    MessageBuilder,
    PendingCalls,
    PictureForm,
    head_messages,
)
from slipring.prompts.templates.jinja_engines import NO_VARIABLES, SupportsStrftime, Variables
from slipring.prompts.templates.probed_template import (
    Draft,
    ModelTemplate,
    ProbedTemplate,
    ThoughtsKept,
    squeezed,
)
from slipring.prompts.templates.stand_ins import (
    LAST_CALL_PLACEHOLDER,
    PLACEHOLDER_TOOLS,
    TEXT_PLACEHOLDER,
    answer_stand_in,
    count_calls,
    loop_thoughts,
    stand_in,
    with_earlier_calls,
    without_thoughts,
)
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.prompts.tool_definitions import template_tools, tool_instructions
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import Picture
from slipring.protocol.items.items import CustomToolCall, FunctionCall, Item

Ranges = tuple[tuple[int, int], ...]
"""Of the numbers of reasoning items in a context: the first and past the last of each."""
_MAX_RANGES = 64
"""Ranges that are kept with a context. Most templates leave out the thoughts of all earlier turns: one."""


class Tail(Struct, frozen=True):
    """The state needed to append to a context. The field names are stored: see ``rendering_codec``."""

    stand_in: tuple[ChatMessage, ...]
    pending: PendingCalls
    """Calls whose outputs are missing at the end of the context."""
    prompt: tuple[int, ...] | None
    """Ids that open the assistant turn; None if the context includes them because they are inseparable."""
    opens_thought: bool
    """Whether the assistant turn begins inside a thought."""
    is_open: bool = False
    """Whether the context ends with an open assistant turn."""
    calls: int | None = None
    """How many calls the context holds, if the template numbers them or their ids count them."""
    effort: str | None = None
    """The effort of reasoning that the context was rendered with."""
    reasoning_context: str | UnsetType = UNSET
    """That of the request for which the context was rendered."""
    unwritten: Ranges | UnsetType = UNSET
    """The reasoning items whose thoughts the context lacks."""
    thoughts: tuple[int, int] | UnsetType = UNSET
    """How many reasoning items the context has, and how many before the last message of the user or a
    developer."""


class TemplateRenderer(Renderer):
    """Renders contexts with a chat template.

    ``Body.tail`` is a ``Tail``. Raises ``TemplateError`` if the template is unusable.
    """

    def __init__(
        self,
        model: ModelTemplate,
        vocabulary: Vocabulary,
        *,
        today: SupportsStrftime | None = None,
        variables: Variables = NO_VARIABLES,
        keeps_thoughts: bool = False,
        pictures: Sequence[PictureForm] = (),
    ) -> None:
        """``variables``: further variables of the template, which win over those that an effort sets.
        ``keeps_thoughts``: earlier thoughts stay in the context where the template would drop them.
        ``pictures``: the forms in which pictures may be given to it, if the model can see."""
        day = today.strftime("%Y-%m-%d") if today is not None else ""
        parts = (model.source, model.bos_token, model.eos_token, day, wire.encode(variables).decode())
        digest = hashlib.sha256("\0".join(parts).encode())
        inline = " inline" if INLINE_PICTURES in pictures else ""  # ids that stand for pictures are no tokens
        super().__init__(f"template {digest.hexdigest()[:12]}{inline}", vocabulary)
        self.model = model
        self.probed = probed = ProbedTemplate(
            model,
            vocabulary,
            today=today,
            variables=variables,
            keeps_thoughts=keeps_thoughts,
            pictures=pictures,
        )
        if probed.picture is not None:
            self.takes_pictures = True
            takes_in_system = "system" in probed.picture.roles
            self.image_roles = ("user", "system", "developer") if takes_in_system else ("user",)
        self.template, self.detected, self.forms = probed.template, probed.detected, probed.forms
        self.output_format, self.efforts = probed.output_format, probed.efforts
        self.chain_choices, self.rewrites_answers = probed.chain_choices, probed.rewrites_answers
        looks_back = probed.counts_messages or probed.numbers_calls == "all"
        self.appends_quickly = self.template.engine == "minijinja" and not looks_back
        calls = self.output_format.calls
        self._counts_calls = isinstance(calls, NamedJsonCalls) and calls.id_is_index
        self._has_call_ids = has_call_ids(self.output_format)

    def stop_ids(self) -> frozenset[int]:
        return self.probed.stop_ids

    def start(
        self,
        head: Head,
        settings: Settings,
        items: Sequence[Item],
        encoder: BudgetedEncoder,
        *,
        dropped_thoughts: int = 0,
    ) -> Rendered:
        format = settings.format
        builder = self._builder({}, 0, thoughts=dropped_thoughts).add(items)
        callables, writes_tools = head.tools.callables, self.detected.writes_tools
        described = tool_instructions(callables) if callables and not writes_tools else ""
        messages = [*head_messages(head, format, described), *builder.messages]
        tools = template_tools(callables) if writes_tools else []
        draft = self.probed.draft(messages, tools, encoder, settings.effort, settings.reasoning_context)
        if self.probed.thoughts_kept(settings.reasoning_context) == "turn":
            messages = in_current_turn(messages)
        text = draft.write(messages)
        opened = draft.opened(messages, text)
        prompt = draft.rest(text, opened)
        if prompt is None:
            tail = self._tail(messages, builder, None, opened, settings)
            text = opened
        else:
            tail = self._tail(messages, builder, draft.ids(prompt), prompt, settings)
        ids, placed = draft.placed(text, builder.pictures) if builder.pictures else (draft.ids(text), ())
        if builder.thoughts:
            unwritten = ranges_of(draft.unwritten_thoughts(messages, opened))
            thoughts = (builder.thoughts, builder.earlier_thoughts)
            tail = structs.replace(tail, unwritten=unwritten or UNSET, thoughts=thoughts)
        return Rendered(self._writer, Preface(head, format), empty(tail)).then(ids, tail, placed)

    def append(self, position: Rendered, job: Job, encoder: BudgetedEncoder) -> Rendered:
        tail, settings = _tail(position), job.settings
        effort, context = settings.effort, settings.reasoning_context
        has_tools = self.detected.writes_tools and bool(job.head.tools.callables)
        self._require_same_history(position, job, has_tools=has_tools)
        answer, builder = self._following(position, tail, job)
        new, earlier = builder.messages, self.probed.variables_of(tail.effort, tail.reasoning_context or None)
        if not new and answer is None:
            if earlier != self.probed.variables_of(effort, context):
                raise CannotAppend(OPENED_OTHERWISE)
            return position
        if _has_adjacent_answers((*tail.stand_in[-1:], *([answer] if answer else []), *new[:1])):
            raise CannotAppend(CONTINUES_ASSISTANT)
        if tail.prompt is None and answer is None:
            raise CannotAppend(NO_BOUNDARY)
        if self.probed.counts_messages:
            raise CannotAppend(COUNTS_MESSAGES)
        before = self._stand_in(tail)
        messages = [*before, *([answer] if answer else []), *new]
        draft = self.probed.draft(messages, PLACEHOLDER_TOOLS if has_tools else [], encoder, effort, context)
        kept = self.probed.thoughts_kept(context)
        try:
            text, prompt = Addition(self.probed, draft, before, answer, new, earlier, kept).written()
        except InvalidRequest:
            raise CannotAppend(REFUSES_PART) from None
        if draft.has_placeholders(text + (prompt or "")):
            raise CannotAppend(MOVES_EARLIER)
        ids = None if prompt is None else draft.ids(prompt)
        opening = text if prompt is None else prompt
        new_tail = self._tail(messages, builder, ids, opening, settings)
        if builder.thoughts:
            earlier_thoughts = builder.earlier_thoughts or _earlier_thoughts(tail)
            thoughts = (builder.thoughts, earlier_thoughts)
            added = ranges_of(draft.unwritten_thoughts(messages, text))
            unwritten = joined_ranges(tail.unwritten or (), added)
            new_tail = structs.replace(new_tail, unwritten=unwritten or UNSET, thoughts=thoughts)
        if builder.pictures:
            return self._append_pictures(position, draft, text, builder.pictures, new_tail)
        return position.then(draft.ids(text), new_tail)

    def _append_pictures(
        self, position: Rendered, draft: Draft, text: str, pictures: Sequence[Picture], tail: Tail
    ) -> Rendered:
        """Append a text that has pictures."""
        form = self.probed.picture
        if form is not None and form.are_numbered and position.body.pictures:
            raise CannotAppend(REWRITES_EARLIER)
        try:
            ids, placed = draft.placed(text, pictures)
        except InvalidRequest:
            raise CannotAppend(REFUSES_PART) from None
        return position.then(ids, tail, placed)

    def _require_same_history(self, position: Rendered, job: Job, *, has_tools: bool) -> None:
        """Raise ``CannotAppend`` if a job wants another beginning, or other earlier answers, than the tokens
        of its parent have."""
        tail, settings = _tail(position), job.settings
        if not position.preface.covers(job):
            raise CannotAppend(HEAD_CHANGED)
        if self.probed.effort_changes_history(tail.effort, settings.effort, has_tools=has_tools):
            raise CannotAppend(EFFORT_CHANGED)
        if self._wants_other_thoughts(tail, settings.reasoning_context):
            raise CannotAppend(CONTEXT_CHANGED)

    def _wants_other_thoughts(self, tail: Tail, context: str | None) -> bool:
        """Whether a request may want thoughts that a context lacks, or not want some that it has."""
        wanted = self.probed.thoughts_kept(context)
        if wanted == self.probed.thoughts_kept(tail.reasoning_context or None):
            return False
        has_thoughts = any(message.thoughts for message in tail.stand_in)
        return bool(tail.unwritten) or (wanted != "all" and has_thoughts)

    def _following(
        self, position: Rendered, tail: Tail, job: Job
    ) -> tuple[ChatMessage | None, MessageBuilder]:
        """The stand-in of the answer that ends the context, if one does; and the job's messages."""
        if not tail.is_open:
            builder = self._builder(tail.pending, tail.calls, thoughts=_count_thoughts(tail))
            return None, builder.add(job.input)
        given = job.parent.answer if job.parent is not None else ()
        ids, thoughts = self._written_ids(position, given), _count_thoughts(tail)
        answered = self._builder(tail.pending, tail.calls, ids, thoughts).add(given)
        answer = answer_stand_in(answered.messages)
        if answer is None:
            raise CannotAppend(REWRITES_EARLIER)
        builder = self._builder(answered.pending, answered.calls, thoughts=answered.thoughts)
        return answer, builder.add(job.input)

    def open(self, context: Rendered) -> Rendered:
        tail = _tail(context)
        return context.then(tail.prompt or (), structs.replace(tail, is_open=True))

    def opens_thought(self, prompt: Rendered) -> bool:
        return _tail(prompt).opens_thought

    def withheld_thoughts(self, prompt: Rendered) -> Sequence[tuple[int, int]]:
        tail = _tail(prompt)
        return clipped_ranges(tail.unwritten or (), _earlier_thoughts(tail))

    def counted_calls(self, prompt: Rendered) -> int:
        return (_tail(prompt).calls or 0) if self._counts_calls else 0

    def _stand_in(self, tail: Tail) -> tuple[ChatMessage, ...]:
        """The stand-in of a context, with all its calls if the template numbers them, and with one if it only
        tells the first call from others."""
        if not self.probed.numbers_calls:
            return tail.stand_in
        if tail.calls is None:
            raise CannotAppend(REWRITES_EARLIER)
        missing = tail.calls - count_calls(tail.stand_in)
        return with_earlier_calls(
            tail.stand_in, missing if self.probed.numbers_calls == "all" else min(missing, 1)
        )

    def _builder(
        self, pending: PendingCalls, calls: int | None, ids: Sequence[str] = (), thoughts: int = 0
    ) -> MessageBuilder:
        return MessageBuilder(
            pending,
            calls if self._counts_calls else None,
            ids,
            text_before_calls=self.forms.text_before_calls,
            thoughts=thoughts,
        )

    def _written_ids(self, position: Rendered, answer: Sequence[Item]) -> Sequence[str]:
        """The ids that the model gave to the calls of its answer, the last step of ``position``; empty if it
        gave none, or if not all of its calls became items."""
        if not self._has_call_ids:
            return ()
        text = self.token_bytes.join(position.body.step.ids)
        ids = written_call_ids(self.output_format, text.decode(errors="replace"))
        calls = sum(isinstance(item.body(), FunctionCall | CustomToolCall) for item in answer)
        return ids if len(ids) == calls and all(ids) else ()

    def _tail(
        self,
        messages: Sequence[ChatMessage],
        builder: MessageBuilder,
        ids: list[int] | None,
        prompt: str,
        settings: Settings,
    ) -> Tail:
        mark = self.output_format.think_open.strip()
        return Tail(
            stand_in=stand_in(messages),
            pending=builder.pending,
            prompt=None if ids is None else tuple(ids),
            opens_thought=bool(mark) and prompt.rstrip().endswith(mark),
            calls=count_calls(messages) if self.probed.numbers_calls else builder.calls,
            effort=settings.effort,
            reasoning_context=settings.reasoning_context or UNSET,
        )


def _tail(rendered: Rendered) -> Tail:
    tail = rendered.body.tail
    assert isinstance(tail, Tail)
    return tail


def _count_thoughts(tail: Tail) -> int:
    return tail.thoughts[0] if tail.thoughts else 0


def _earlier_thoughts(tail: Tail) -> int:
    return tail.thoughts[1] if tail.thoughts else 0


def _has_adjacent_answers(messages: Sequence[ChatMessage]) -> bool:
    """Whether two messages of the assistant follow each other; within the whole context they are one."""
    return any(one.role == next.role == "assistant" for one, next in pairwise(messages))


def in_current_turn(messages: list[ChatMessage]) -> list[ChatMessage]:
    """The messages without the thoughts before the last message of the user."""
    start = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    return [*map(without_thoughts, messages[:start]), *messages[start:]]


class Addition:
    """What a template adds to a context for new messages.

    ``before``: the stand-in of the context. ``answer``: the stand-in of the answer that the model gave to it;
    its ids are kept as emitted. ``earlier``: the variables that the context was rendered with.
    """

    def __init__(
        self,
        probed: ProbedTemplate,
        draft: Draft,
        before: tuple[ChatMessage, ...],
        answer: ChatMessage | None,
        new: Sequence[ChatMessage],
        earlier: Variables,
        kept: ThoughtsKept,
    ) -> None:
        self.probed, self.draft, self.kept = probed, draft, kept
        self.before, self.answer, self.new, self.earlier = before, answer, new, earlier
        self.messages = [*before, *([answer] if answer else []), *new]

    @cached_property
    def whole(self) -> str:
        """What the template writes for all messages."""
        return self.draft.write(self.messages)

    @cached_property
    def answered(self) -> str:
        """The prompt that the model answered, as the template wrote it."""
        return self.draft.write(self.before, prompt=True, variables=self.earlier)

    def written(self) -> tuple[str, str | None]:
        """The text of the new messages, and what then opens the assistant turn; None for the latter if it is
        inseparable from the former. Raises ``CannotAppend``, or ``InvalidRequest`` of the template."""
        if self.kept == "turn" and in_current_turn(self.messages) != self.messages:
            raise CannotAppend(ASKED_TO_DROP)
        if self.answer is not None and self._keeps_dropped_thoughts():
            before, answer = tuple(map(without_thoughts, self.before)), without_thoughts(self.answer)
            bare = Addition(self.probed, self.draft, before, answer, self.new, self.earlier, self.kept)
            return bare._difference(keeps_dropped=True)
        return self._difference(keeps_dropped=False)

    def _difference(self, *, keeps_dropped: bool) -> tuple[str, str | None]:
        """``keeps_dropped``: thoughts were taken from the messages, and stay in the context."""
        draft, whole = self.draft, self.whole
        opened = draft.opened(self.messages, whole)
        prompt = draft.rest(whole, opened)
        if prompt is None:
            whole = opened
        if self.answer is not None:
            return self._after_answer(self.answer, whole, keeps_dropped=keeps_dropped), prompt
        return draft.require_rest(draft.write(self.before, variables=self.earlier), whole), prompt

    def _keeps_dropped_thoughts(self) -> bool:
        """Whether thoughts stay in the context that the template drops once the new messages follow.

        They do if the operator or the request says so, and within a tool loop (``LOOP_THOUGHTS``). Otherwise
        raises ``CannotAppend`` if it drops some.
        """
        draft, probed, answer = self.draft, self.probed, self.answer
        assert answer is not None
        if not any(message.thoughts for message in (*self.before, answer)):
            return False
        if self.kept == "all":
            return True
        written = draft.count_thoughts(self.answered)
        expected = max(written, loop_thoughts(self.before)) + bool(answer.thoughts)
        if draft.count_thoughts(self.whole) >= expected:
            return False
        # Formats without marks of thoughts: those of an answer are no part of its ids.
        in_loop = LOOP_THOUGHTS in probed.chain_choices or not probed.output_format.think_close
        if not in_loop or any(message.role != "tool" for message in self.new):
            raise CannotAppend(DROPS_THOUGHTS)
        if self.earlier == draft.variables:
            return True
        if draft.count_thoughts(draft.write(self.messages, variables=self.earlier)) >= expected:
            raise CannotAppend(EFFORT_CHANGED)
        return True

    def _after_answer(self, answer: ChatMessage, whole: str, *, keeps_dropped: bool) -> str:
        """What the template writes after the model's answer, from the token on that ends answers.

        The placeholder of the answer marks its place in ``whole``. The text before it must be the prompt that
        the model answered, except for what chains keep.
        """
        draft, probed = self.draft, self.probed
        if len(answer.calls) > 1 and not probed.forms.several_calls:
            raise CannotAppend(REWRITES_EARLIER)  # the outputs of the first calls stand before the last call
        mark = draft.guard.text(LAST_CALL_PLACEHOLDER if answer.calls else TEXT_PLACEHOLDER)
        at = whole.rfind(mark)
        kept = draft.kept(self.answered, whole[: max(at, 0)])
        if kept is None or (not keeps_dropped and not kept <= {*probed.chain_choices}):
            raise CannotAppend(REWRITES_EARLIER)
        if any(message.role == "system" for message in self.new):
            # Some templates put all of these at the beginning.
            alone = draft.write([*self.before, answer])
            texts = (whole[:at], alone[: alone.rfind(mark)])
            if len({squeezed(draft.without_empty_thoughts(text)) for text in texts}) > 1:
                raise CannotAppend(REWRITES_EARLIER)
        closer = probed.closers[bool(answer.calls)]
        end = whole.find(closer, at + len(mark)) if closer else -1
        if end < 0:
            raise CannotAppend(NO_BOUNDARY)
        if probed.eos_token:  # some templates end one call otherwise than several
            stopped = whole.find(probed.eos_token, at + len(mark), end)
            end = stopped if stopped >= 0 else end
        return whole[end:]


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """Ascending numbers as ranges, of which the latest 64 are kept."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges[-_MAX_RANGES:])


def joined_ranges(before: Ranges, after: Ranges) -> Ranges:
    """Ranges with those of later items, of which the latest 64 are kept."""
    if before and after and before[-1][1] == after[0][0]:
        before, after = before[:-1], ((before[-1][0], after[0][1]), *after[1:])
    return (before + after)[-_MAX_RANGES:]


def clipped_ranges(ranges: Ranges, end: int) -> Ranges:
    """The ranges up to a number."""
    return tuple((first, min(past, end)) for first, past in takewhile(lambda each: each[0] < end, ranges))
