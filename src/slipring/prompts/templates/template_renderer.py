"""Renders contexts with the model's own chat template, by delta where the template allows it.

A template renders whole conversations. To find what it adds for new messages, the renderer lets it render a
stand-in for the earlier messages twice, alone and with the new messages. The difference is the delta, at a
cost that does not grow with the conversation; only for templates that number calls it grows with these. If
the first output is not a prefix of the second, or they do not meet at a control token, the renderer raises
``CannotAppend`` and all items are rendered.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal

from msgspec import Struct, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.head import Head
from slipring.core.generation import Job, Settings
from slipring.prompts.chain_choices import (
    ALL_THOUGHTS,
    CALL_IDS,
    CALL_TEXTS,
    CHAIN_CHOICES,
    EMPTY_THOUGHTS,
    LOOP_THOUGHTS,
    WHITE_SPACE,
    ChainChoice,
)
from slipring.prompts.parsing.call_ids import has_call_ids, written_call_ids
from slipring.prompts.parsing.known_formats import HERMES
from slipring.prompts.parsing.output_format import NamedJsonCalls, OutputFormat
from slipring.prompts.rendering import CannotAppend, EncodedIds, Preface, Rendered, Renderer, empty
from slipring.prompts.templates.chat_messages import (
    ChatMessage,
    MessageBuilder,
    MessageFields,
    PendingCalls,
    head_messages,
    template_tools,
)
from slipring.prompts.templates.chat_template import NO_VARIABLES, ChatTemplate, Variables
from slipring.prompts.templates.detection.format_detection import detect_format
from slipring.prompts.templates.detection.text_comparison import common_prefix
from slipring.prompts.templates.message_forms import ACCEPTS_ALL, MessageForms, find_forms
from slipring.prompts.templates.stand_ins import (
    ALL_PLACEHOLDERS,
    ANSWERED,
    CALLED,
    EARLIER_ANSWERS,
    LAST_CALL_PLACEHOLDER,
    NEXT_PLACEHOLDER,
    PLACEHOLDER_TOOLS,
    QUESTION,
    TEXT_PLACEHOLDER,
    THOUGHT_PLACEHOLDER,
    answer_stand_in,
    count_calls,
    earlier_calls,
    loop_thoughts,
    stand_in,
    with_earlier_calls,
    with_thoughts,
    without_thoughts,
)
from slipring.prompts.templates.template_engines import SupportsStrftime, TemplateError
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder, ControlTokenGuard
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.prompts.tool_definitions import tool_instructions
from slipring.protocol import wire
from slipring.protocol.items import CustomToolCall, FunctionCall, Item

HEAD_CHANGED = "the head changed"
EFFORT_CHANGED = (
    "the effort of reasoning changed, which the template writes at the beginning or in earlier answers"
)
OPENED_OTHERWISE = "the effort of reasoning changed, with which the template may open answers otherwise"
REWRITES_EARLIER = "the template rewrites earlier turns"
DROPS_THOUGHTS = "the template drops earlier thoughts"
MOVES_EARLIER = "the template writes earlier parts among the new ones"
CONTINUES_ASSISTANT = "the delta continues an assistant message"
REFUSES_PART = "the template cannot write a part of the conversation alone"
NO_BOUNDARY = "the template's parts do not meet at a control token"

_NOTHING = EncodedIds.of(())


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


class ModelTemplate(Struct, frozen=True, kw_only=True):
    """A model's chat template, and what its files say about the tokens around it."""

    source: str
    bos_token: str = ""
    eos_token: str = ""
    stop_ids: tuple[int, ...] = ()
    """The ids that end an answer, as far as the model's files name them."""
    response_template: Mapping[str, Any] | None = None
    """The model's own description of its answers."""


class TemplateRenderer(Renderer):
    """Renders contexts with a chat template.

    ``Body.tail`` is a ``Tail``. The preface has no tokens: a template writes the head as part of the
    conversation. Raises ``TemplateError`` if the template is unusable.
    """

    def __init__(
        self,
        model: ModelTemplate,
        vocabulary: Vocabulary,
        *,
        today: SupportsStrftime | None = None,
        variables: Variables = NO_VARIABLES,
        keeps_thoughts: bool = False,
    ) -> None:
        """``variables``: further variables of the template, which win over those that an effort sets.
        ``keeps_thoughts``: earlier thoughts stay in the context where the template would drop them."""
        day = today.strftime("%Y-%m-%d") if today is not None else ""
        parts = (model.source, model.bos_token, model.eos_token, day, wire.encode(variables).decode())
        digest = hashlib.sha256("\0".join(parts).encode())
        super().__init__(f"template {digest.hexdigest()[:12]}", vocabulary)
        self.template = ChatTemplate(
            model.source, bos_token=model.bos_token, eos_token=model.eos_token, today=today
        )
        self.model = model
        self._finder = ControlTokenFinder(vocabulary, model.source)
        self._variables = variables
        self._keeps_thoughts = keeps_thoughts
        self._require_user_message()
        self.detected = detected = detect_format(self._render_probe, model.source, model.response_template)
        # Tools that the template does not write are described in Hermes' form: calls are expected in it.
        self.output_format = _with_hermes(detected.format) if self._describes_tools else detected.format
        self._fields = MessageFields(
            thought_blocks=detected.takes_thought_chunks,
            text_arguments=detected.takes_text_arguments,
            null_content=detected.takes_null_content,
            calls_as_text=None if detected.writes_calls else _with_hermes(self.output_format),
        )
        self.forms = ACCEPTS_ALL
        self.forms = find_forms(self._write_probe)
        if self._describes_tools and not detected.writes_calls:
            self.forms = structs.replace(self.forms, outputs=False)  # Hermes' form for these as well
        calls = self.output_format.calls
        self._counts_calls = isinstance(calls, NamedJsonCalls) and calls.id_is_index
        self._has_call_ids = has_call_ids(self.output_format)
        self._numbers_calls = self._finds_numbers()
        named = self._control_ids((model.eos_token, *self.output_format.stops))
        self._stop_ids = frozenset(named.union(model.stop_ids))
        self._closers = (
            self._find_closer(ANSWERED, TEXT_PLACEHOLDER),
            self._find_closer(CALLED, LAST_CALL_PLACEHOLDER),
        )
        self._effort_changes: dict[tuple[str | None, str | None, bool], bool] = {}
        self.rewrites_answers = not keeps_thoughts and self._drops_thoughts()
        self.efforts = detected.thinking.distinct_efforts()
        self.chain_choices = tuple(sorted(self._find_choices(), key=CHAIN_CHOICES.index))

    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    def start(
        self, head: Head, settings: Settings, items: Sequence[Item], encoder: BudgetedEncoder
    ) -> Rendered:
        format = settings.format
        builder = self._builder({}, 0).add(items)
        messages = [*head_messages(head, format, self._describe_tools(head)), *builder.messages]
        tools = template_tools(head.tools.callables) if self.detected.writes_tools else []
        draft = self._draft(messages, tools, encoder, settings.effort)
        text = draft.write(messages)
        opened = draft.write(messages, prompt=True)
        prompt = draft.rest(text, opened)
        if prompt is None:
            tail = self._tail(messages, builder, None, opened, settings)
            ids = draft.ids(opened)
        else:
            tail = self._tail(messages, builder, draft.ids(prompt), prompt, settings)
            ids = draft.ids(text)
        preface = Preface(head, format, _NOTHING)
        return Rendered(self._writer, preface, empty(tail)).then(ids, tail)

    def append(self, position: Rendered, job: Job, encoder: BudgetedEncoder) -> Rendered:
        tail = _tail(position)
        if not position.preface.covers(job):
            raise CannotAppend(HEAD_CHANGED)
        has_tools = self.detected.writes_tools and bool(job.head.tools.callables)
        if self._effort_changes_history(tail.effort, job.settings.effort, has_tools=has_tools):
            raise CannotAppend(EFFORT_CHANGED)
        pending, calls = tail.pending, tail.calls
        answer: tuple[ChatMessage, ...] = ()
        if tail.is_open:
            given = job.parent.answer if job.parent is not None else ()
            answered = self._builder(pending, calls, self._written_ids(position, given)).add(given)
            pending, calls, answer = answered.pending, answered.calls, (_answer_stand_in(answered.messages),)
        builder = self._builder(pending, calls).add(job.input)
        new = builder.messages
        if not new and not tail.is_open:
            if self._variables_of(tail.effort) != self._variables_of(job.settings.effort):
                raise CannotAppend(OPENED_OTHERWISE)
            return position
        if _continues((*tail.stand_in, *answer), new) or (answer and _continues(tail.stand_in, answer)):
            raise CannotAppend(CONTINUES_ASSISTANT)
        if tail.prompt is None and not tail.is_open:
            raise CannotAppend(NO_BOUNDARY)
        before = self._stand_in(tail)
        messages = [*before, *answer, *new]
        tools = PLACEHOLDER_TOOLS if has_tools else []
        draft = self._draft(messages, tools, encoder, job.settings.effort)
        try:
            text, prompt = self._difference(draft, before, answer, new, self._variables_of(tail.effort))
        except InvalidRequest:
            raise CannotAppend(REFUSES_PART) from None
        if draft.has_placeholders(text + (prompt or "")):
            raise CannotAppend(MOVES_EARLIER)
        ids = None if prompt is None else draft.ids(prompt)
        new_tail = self._tail(messages, builder, ids, text if prompt is None else prompt, job.settings)
        return position.then(draft.ids(text), new_tail)

    def open(self, context: Rendered) -> Rendered:
        tail = _tail(context)
        return context.then(tail.prompt or (), structs.replace(tail, is_open=True))

    def opens_thought(self, prompt: Rendered) -> bool:
        return _tail(prompt).opens_thought

    def counted_calls(self, prompt: Rendered) -> int:
        return (_tail(prompt).calls or 0) if self._counts_calls else 0

    def _stand_in(self, tail: Tail) -> tuple[ChatMessage, ...]:
        """The stand-in of a context, with all its calls if the template numbers them, and with one if it only
        tells the first call from others."""
        if not self._numbers_calls:
            return tail.stand_in
        if tail.calls is None:
            raise CannotAppend(REWRITES_EARLIER)
        missing = tail.calls - count_calls(tail.stand_in)
        return with_earlier_calls(tail.stand_in, missing if self._numbers_calls == "all" else min(missing, 1))

    def _difference(
        self,
        draft: "_Draft",
        before: tuple[ChatMessage, ...],
        answer: tuple[ChatMessage, ...],
        new: Sequence[ChatMessage],
        earlier: Variables,
    ) -> tuple[str, str | None]:
        """What the template adds for new messages, and what then opens the assistant turn; None for the
        latter if it is inseparable from the former.

        ``answer`` is the stand-in of the model's answer, if it wrote one: its ids are kept as emitted.
        ``earlier``: the variables that the messages before it were rendered with.
        """
        keeps_dropped = bool(answer) and self._keeps_dropped(draft, before, answer, new, earlier)
        if keeps_dropped:
            before, answer = tuple(map(without_thoughts, before)), tuple(map(without_thoughts, answer))
        messages = [*before, *answer, *new]
        whole = draft.write(messages)
        opened = draft.write(messages, prompt=True)
        prompt = draft.rest(whole, opened)
        if prompt is None:
            whole = opened
        if answer:
            start = draft.write(before, prompt=True, variables=earlier)
            text = self._after_answer(
                draft, start, before, answer[0], new, whole, keeps_dropped=keeps_dropped
            )
            return text, prompt
        return draft.require_rest(draft.write(before, variables=earlier), whole), prompt

    def _keeps_dropped(
        self,
        draft: "_Draft",
        before: tuple[ChatMessage, ...],
        answer: tuple[ChatMessage, ...],
        new: Sequence[ChatMessage],
        earlier: Variables,
    ) -> bool:
        """Whether thoughts stay in the context that the template drops once the new messages follow.

        They do if the operator says so, and within a tool loop (``LOOP_THOUGHTS``). Otherwise raises
        ``CannotAppend`` if it drops some.
        """
        if not any(message.thoughts for message in (*before, *answer)):
            return False
        if self._keeps_thoughts:
            return True
        written = draft.count_thoughts(draft.write(before, prompt=True, variables=earlier))
        expected = max(written, loop_thoughts(before)) + bool(answer[0].thoughts)
        if draft.count_thoughts(draft.write([*before, *answer, *new])) >= expected:
            return False
        # Formats without marks of thoughts: those of an answer are no part of its ids.
        in_loop = LOOP_THOUGHTS in self.chain_choices or not self.output_format.think_close
        if not in_loop or any(message.role != "tool" for message in new):
            raise CannotAppend(DROPS_THOUGHTS)
        same = draft.write([*before, *answer, *new], variables=earlier)
        if draft.count_thoughts(same) >= expected:
            raise CannotAppend(EFFORT_CHANGED)
        return True

    def _after_answer(
        self,
        draft: "_Draft",
        start: str,
        before: Sequence[ChatMessage],
        answer: ChatMessage,
        new: Sequence[ChatMessage],
        whole: str,
        *,
        keeps_dropped: bool,
    ) -> str:
        """Return what the template writes after the model's answer, from the token on that ends answers.

        ``start`` is the prompt that the model answered. The placeholder of the answer marks its place in
        ``whole``. The text before it must be that prompt, except for what chains keep. ``keeps_dropped``:
        thoughts were taken from the messages, which stay in the context.
        """
        if len(answer.calls) > 1 and not self.forms.several_calls:
            raise CannotAppend(REWRITES_EARLIER)  # the outputs of the first calls stand before the last call
        mark = draft.guard.text(LAST_CALL_PLACEHOLDER if answer.calls else TEXT_PLACEHOLDER)
        at = whole.rfind(mark)
        kept = self._kept(draft, start, whole[: max(at, 0)])
        if kept is None or (not keeps_dropped and not kept <= {*self.chain_choices}):
            raise CannotAppend(REWRITES_EARLIER)
        if any(message.role == "system" for message in new):
            # Some templates put all of these at the beginning.
            alone = draft.write([*before, answer])
            texts = (whole[:at], alone[: alone.rfind(mark)])
            if len({_squeezed(self._without_empty_thoughts(draft, text)) for text in texts}) > 1:
                raise CannotAppend(REWRITES_EARLIER)
        closer = self._closers[bool(answer.calls)]
        end = whole.find(closer, at + len(mark)) if closer else -1
        if end < 0:
            raise CannotAppend(NO_BOUNDARY)
        if self.model.eos_token:  # some templates end one call otherwise than several
            stopped = whole.find(self.model.eos_token, at + len(mark), end)
            end = stopped if stopped >= 0 else end
        return whole[end:]

    def _kept(self, draft: "_Draft", start: str, written: str) -> Set[ChainChoice] | None:
        """What a chain keeps if it begins with ``start`` where the template now writes ``written``; None if
        these differ by more."""
        if written.startswith(start):
            return set()
        bare = [self._without_empty_thoughts(draft, text) for text in (start, written)]
        if bare[1].startswith(bare[0]):
            return {EMPTY_THOUGHTS}
        if _squeezed(written).startswith(_squeezed(start)):
            return {WHITE_SPACE}
        return {EMPTY_THOUGHTS, WHITE_SPACE} if _squeezed(bare[1]).startswith(_squeezed(bare[0])) else None

    def _without_empty_thoughts(self, draft: "_Draft", text: str) -> str:
        """A text without the thoughts that no model wrote, and without marks of thoughts."""
        opening, closing = self.output_format.think_open.strip(), self.output_format.think_close.strip()
        if opening and closing:
            inner = f"(?:(?!{re.escape(opening)}|{re.escape(closing)}).)*"
            thoughts = re.compile(rf"{re.escape(opening)}{inner}{re.escape(closing)}\s*", re.DOTALL)
            text = thoughts.sub(lambda found: found[0] if draft.count_thoughts(found[0]) else "", text)
        for mark in filter(None, (opening, closing)):
            text = re.sub(rf"{re.escape(mark)}\s*", "", text)
        return text

    def _builder(self, pending: PendingCalls, calls: int | None, ids: Sequence[str] = ()) -> MessageBuilder:
        return MessageBuilder(
            pending,
            calls if self._counts_calls else None,
            ids,
            text_before_calls=self.forms.text_before_calls,
        )

    def _written_ids(self, position: Rendered, answer: Sequence[Item]) -> Sequence[str]:
        """The ids that the model gave to the calls of its answer, the last step of ``position``; empty if it
        gave none, or if not all of its calls became items."""
        text = self.token_bytes.join(position.body.step.ids) if self._has_call_ids else b""
        ids = written_call_ids(self.output_format, text.decode(errors="replace"))
        calls = sum(isinstance(item.body(), FunctionCall | CustomToolCall) for item in answer)
        return ids if len(ids) == calls and all(ids) else ()

    def _draft(
        self,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]],
        encoder: BudgetedEncoder,
        effort: str | None,
    ) -> "_Draft":
        variables = self._variables_of(effort)
        return _Draft(
            self.template, self._finder, self.forms, self._fields, encoder, messages, tools, variables
        )

    def _variables_of(self, effort: str | None) -> Variables:
        return {**self.detected.thinking.variables(effort), **self._kept_thoughts(), **self._variables}

    def _kept_thoughts(self) -> Variables:
        return self.detected.thinking.keep_variables() if self._keeps_thoughts else NO_VARIABLES

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
            calls=count_calls(messages) if self._numbers_calls else builder.calls,
            effort=settings.effort,
        )

    def _describe_tools(self, head: Head) -> str:
        """A description of the tools for the system message, if the template does not write them."""
        return (
            tool_instructions(head.tools.callables) if self._describes_tools and head.tools.callables else ""
        )

    @property
    def _describes_tools(self) -> bool:
        return not self.detected.writes_tools

    def _effort_changes_history(self, before: str | None, now: str | None, *, has_tools: bool) -> bool:
        """Whether a template writes another beginning or other earlier answers for another effort, instead of
        only another prompt."""
        if self._variables_of(before) == self._variables_of(now):
            return False
        change = (before, now, has_tools)
        if change not in self._effort_changes:
            tools = PLACEHOLDER_TOOLS if has_tools else []
            self._effort_changes[change] = any(
                self._write_probe(messages, before, tools) != self._write_probe(messages, now, tools)
                for messages in ([QUESTION], EARLIER_ANSWERS)
            )
        return self._effort_changes[change]

    def _finds_numbers(self) -> Literal["all", "first", ""]:
        """Whether the template writes another text for a call, or for its output, after other calls: for each
        of them, for the first one, or not."""
        question, *called = CALLED
        in_a_loop = self._numbers_after(lambda count: [question, *earlier_calls(count)], called)
        asked_again = self._numbers_after(lambda count: with_earlier_calls([question], count), called)
        return "all" if "all" in (in_a_loop, asked_again) else in_a_loop or asked_again

    def _numbers_after(
        self, earlier: Callable[[int], Sequence[ChatMessage]], called: Sequence[ChatMessage]
    ) -> Literal["all", "first", ""]:
        """The same for a call after the messages with so many earlier ones."""
        written = []
        for count in range(3):
            before = earlier(count)
            start, whole = (self._write_probe(messages) for messages in (before, [*before, *called]))
            if start is None or whole is None:
                return ""
            # Some templates end a list of outputs only where nothing follows it.
            written.append(whole[len(common_prefix(start, whole)) :])
        if written[1] != written[2]:
            return "all"
        return "first" if written[0] != written[1] else ""

    def _drops_thoughts(self) -> bool:
        """Whether the template leaves out the thoughts of an answer once the user speaks again."""
        question, answer, following = ANSWERED
        return self._drops((question, with_thoughts(answer), following), None)

    def _drops(self, messages: Sequence[ChatMessage], effort: str | None) -> bool:
        """Whether the template leaves out the only thoughts of messages."""
        draft = self._draft(messages, [], BudgetedEncoder(self.vocabulary), effort)
        try:
            return not draft.count_thoughts(draft.write(messages))
        except InvalidRequest:
            return False

    def _find_choices(self) -> Iterator[ChainChoice]:
        """What chains keep that the template drops."""
        efforts = (None, *self.efforts)
        yield from {choice for effort in efforts for choice in self._kept_after_answers(effort)}
        question, called, output = CALLED
        loop = (question, with_thoughts(called), output)
        if self._adds_call_ids():
            yield CALL_IDS
        if self._drops_call_texts():
            yield CALL_TEXTS
        if self._keeps_thoughts and self._drops_thoughts():
            yield ALL_THOUGHTS
        elif any(self._drops(loop, effort) for effort in filter(self._thinks, efforts)):
            yield LOOP_THOUGHTS

    def _adds_call_ids(self) -> bool:
        """Whether the template writes the id of a call only once its output follows."""
        *asked, called, _ = CALLED
        draft = self._draft(CALLED, [], BudgetedEncoder(self.vocabulary), None)
        call, mark = called.calls[-1], draft.guard.text(LAST_CALL_PLACEHOLDER)
        try:
            last, earlier = (
                draft.write(messages).rpartition(mark)[2] for messages in ([*asked, called], CALLED)
            )
        except InvalidRequest:
            return False
        closer = self._closers[True]
        return bool(closer) and call.id in earlier.partition(closer)[0] and call.id not in last

    def _drops_call_texts(self) -> bool:
        """Whether the template writes a call without the text before it."""
        question, called, output = CALLED
        spoken = structs.replace(called, content=TEXT_PLACEHOLDER)
        draft = self._draft(CALLED, [], BudgetedEncoder(self.vocabulary), None)
        try:
            written = draft.write([question, spoken, output])
        except InvalidRequest:
            return False
        text, call = draft.guard.text(TEXT_PLACEHOLDER), draft.guard.text(LAST_CALL_PLACEHOLDER)
        return call in written and text not in written

    def _thinks(self, effort: str | None) -> bool:
        """Whether the model may think, as far as its template shows."""
        switches = self.detected.thinking
        is_off = effort == "none" if effort is not None else switches.thinks_by_default is False
        return bool(self.output_format.think_close) and not (is_off and switches.can_be_off)

    def _kept_after_answers(self, effort: str | None) -> Iterator[ChainChoice]:
        """What chains keep because a template writes prompts otherwise once answers and messages follow."""
        draft = self._draft(EARLIER_ANSWERS, [], BudgetedEncoder(self.vocabulary), effort)
        question, answer, following = ANSWERED
        _, called, output = CALLED
        texts, calls = draft.guard.text(TEXT_PLACEHOLDER), draft.guard.text(LAST_CALL_PLACEHOLDER)
        for context in ((question,), (question, called, output)):
            for reply, mark, follower in ((answer, texts, following), (called, calls, output)):
                try:
                    start = draft.write(context, prompt=True)
                    written = draft.write([*context, reply, follower]).rpartition(mark)[0]
                except InvalidRequest:
                    continue
                yield from self._kept(draft, start, written) or ()

    def _require_user_message(self) -> None:
        question = [{"role": "user", "content": "?"}]
        try:
            self.template.render(question, add_generation_prompt=True, variables=self._variables)
        except InvalidRequest as error:
            raise TemplateError(f"The chat template cannot render a user message: {error.message}") from None

    def _render_probe(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Variables,
    ) -> str:
        return self.template.render(
            messages,
            tools,
            add_generation_prompt=add_generation_prompt,
            variables={**variables, **self._variables},
        )

    def _write_probe(
        self,
        messages: Sequence[ChatMessage],
        effort: str | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str | None:
        """What the template writes for messages; None if it refuses them."""
        draft = self._draft(messages, list(tools), BudgetedEncoder(self.vocabulary), effort)
        try:
            return draft.write(messages)
        except InvalidRequest:
            return None

    def _find_closer(self, messages: Sequence[ChatMessage], mark: str) -> str:
        """The control token that ends an answer, between ``mark``, the last text of an answer, and the next
        message; empty if none does.

        It is the first one that ends answers. Where the template writes another one (Harmony), or none (GLM:
        the next message begins), it is the first one that is not a mark of calls.
        """
        draft = self._draft(messages, [], BudgetedEncoder(self.vocabulary), None)
        try:
            written = draft.write(messages)
        except InvalidRequest:
            return ""
        after = written.rpartition(draft.guard.text(mark))[2]
        pieces = self._finder.split(after.partition(draft.guard.text(NEXT_PLACEHOLDER))[0])
        ids = [piece for piece in pieces if isinstance(piece, int)]
        format = self.output_format
        # In Harmony, all structure is marks: answers end with one that is none of a call.
        marks = set() if format.is_harmony else self._control_ids(format.marks())
        if mark == TEXT_PLACEHOLDER and not _is_blank(pieces):
            return ""  # text ends the answer
        closers = [id for id in ids if id in self._stop_ids] or self._others(pieces, marks)
        names = {self.vocabulary.control(name): name for name in self.vocabulary.control_tokens()}
        return names[closers[0]] if closers else ""

    def _others(self, pieces: Sequence[str | int], marks: Set[int]) -> list[int]:
        """The control tokens that are no marks. A mark that begins the next message is one of them (Solar's
        ``<|begin|>tool<|tool_response|>``): other words than those of calls follow it."""
        found: list[int] = []
        for before, text, piece in zip(("", "", *pieces), ("", *pieces), pieces, strict=False):
            if isinstance(piece, int) and piece not in marks:
                if isinstance(before, int) and isinstance(text, str) and self._is_foreign(text):
                    found.append(before)
                found.append(piece)
        return found

    def _is_foreign(self, text: str) -> bool:
        """Whether a text has words that are no marks of the format."""
        for mark in sorted(self.output_format.marks(), key=len, reverse=True):
            text = text.replace(mark.strip(), "")
        return bool(text.strip())

    def _control_ids(self, names: Iterable[str]) -> set[int]:
        return {self.vocabulary.control(name) for name in filter(self.vocabulary.has_control, names)}


class _Draft:
    """Renders one conversation several times, with and without its last messages."""

    def __init__(
        self,
        template: ChatTemplate,
        finder: ControlTokenFinder,
        forms: MessageForms,
        fields: MessageFields,
        encoder: BudgetedEncoder,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]],
        variables: Variables,
    ) -> None:
        self._template = template
        self._finder = finder
        self._forms = forms
        self._fields = fields
        self._encoder = encoder
        self._variables = variables
        self.guard = ControlTokenGuard(finder, wire.encode((messages, tools)).decode())
        self._tools: list[dict[str, Any]] = [self.guard.value(tool) for tool in tools]

    def write(
        self, messages: Sequence[ChatMessage], *, prompt: bool = False, variables: Variables | None = None
    ) -> str:
        """Render messages. ``prompt``: with an open assistant turn. ``variables``: instead of those of the
        conversation. Raises ``InvalidRequest``."""
        guard, fields = self.guard, self._fields
        dicts = [message.as_dict(guard.text, guard.value, fields) for message in self._forms.adapt(messages)]
        return self._template.render(
            dicts,
            self._tools or None,
            add_generation_prompt=prompt,
            variables=self._variables if variables is None else variables,
        )

    def count_thoughts(self, text: str) -> int:
        """How many thoughts of a stand-in a text has."""
        return text.count(self.guard.text(THOUGHT_PLACEHOLDER))

    def rest(self, text: str, longer: str) -> str | None:
        """What ``longer`` has after ``text``; None if it has another beginning, or no token ends there."""
        if not longer.startswith(text):
            return None
        rest = longer[len(text) :]
        left, right = self._finder.split(text), self._finder.split(rest)
        if left and right and isinstance(left[-1], str) and isinstance(right[0], str):
            return None
        return rest if self._finder.split(longer) == left + right else None

    def require_rest(self, text: str, longer: str) -> str:
        """Like ``rest``, but raises ``CannotAppend`` instead of returning None."""
        rest = self.rest(text, longer)
        if rest is None:
            raise CannotAppend(NO_BOUNDARY if longer.startswith(text) else REWRITES_EARLIER)
        return rest

    def has_placeholders(self, text: str) -> bool:
        return any(self.guard.text(placeholder) in text for placeholder in ALL_PLACEHOLDERS)

    def ids(self, text: str) -> list[int]:
        """Encode rendered text: control tokens by name, each text between them separately."""
        ids: list[int] = []
        pieces = self.guard.mend(self._finder.split(text))
        self._encoder.expect(piece for piece in pieces if isinstance(piece, str))
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                self._encoder.spend(1)
            else:
                ids += self._encoder.encode(piece)
        return ids


def _with_hermes(format: OutputFormat) -> OutputFormat:
    """A format with Hermes' calls if it has none, and with Hermes' thoughts if it has none."""
    if format.calls is not None or format.is_harmony:
        return format
    think_open, think_close = format.think_open, format.think_close
    if not think_close:
        think_open, think_close = HERMES.think_open, HERMES.think_close
    return structs.replace(format, calls=HERMES.calls, think_open=think_open, think_close=think_close)


def _squeezed(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


def _is_blank(pieces: Sequence[str | int]) -> bool:
    """Whether no text but white space precedes the first control token."""
    return not pieces or isinstance(pieces[0], int) or not pieces[0].strip()


def _tail(rendered: Rendered) -> Tail:
    tail = rendered.body.tail
    assert isinstance(tail, Tail)
    return tail


def _answer_stand_in(answer: Sequence[ChatMessage]) -> ChatMessage:
    message = answer_stand_in(answer)
    if message is None:
        raise CannotAppend(REWRITES_EARLIER)
    return message


def _continues(before: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> bool:
    """Whether two assistant messages would follow each other; within the whole context they are one."""
    return bool(before and new) and before[-1].role == new[0].role == "assistant"
