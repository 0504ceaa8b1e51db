"""Renders contexts with the model's own chat template, by delta where the template allows it.

A template renders whole conversations. To find what it adds for new messages, the renderer lets it render a
stand-in for the earlier messages twice, alone and with the new messages. The difference is the delta, at a
cost that does not grow with the conversation. If the first output is not a prefix of the second, or they do
not meet at a control token, the renderer raises ``CannotAppend`` and all items are rendered.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from slipring.core.chain.head import Head
from slipring.core.generation import Job
from slipring.errors import InvalidRequest
from slipring.prompts.parsing.known_formats import detect_call_format
from slipring.prompts.rendering import CannotAppend, Preface, Rendered, Renderer, Step, empty
from slipring.prompts.templates.chat_messages import (
    ChatMessage,
    MessageBuilder,
    PendingCalls,
    head_messages,
    template_tools,
)
from slipring.prompts.templates.jinja import SupportsStrftime, Template, TemplateError
from slipring.prompts.templates.template_probes import (
    ALL_PLACEHOLDERS,
    LAST_CALL_PLACEHOLDER,
    PLACEHOLDER_TOOLS,
    TEXT_PLACEHOLDER,
    THOUGHT_PLACEHOLDER,
    answer_stand_in,
    stand_in,
)
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder, ControlTokenGuard
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items import Item
from slipring.protocol.requests import TextFormat

HEAD_CHANGED = "the head changed"
REWRITES_EARLIER = "the template rewrites earlier turns"
MOVES_EARLIER = "the template writes earlier parts among the new ones"
CONTINUES_ASSISTANT = "the delta continues an assistant message"
REFUSES_PART = "the template cannot write a part of the conversation alone"
NO_BOUNDARY = "the template's parts do not meet at a control token"
UNUSUAL_CALL_END = "the template ends answers with calls differently"

_NOTHING = Step.of(())


class Tail(Struct, frozen=True):
    """The state needed to append to a context. The field names are stored: see ``rendering_codec``."""

    stand_in: tuple[ChatMessage, ...]
    names: PendingCalls
    """Tools whose outputs are missing at the end of the context."""
    prompt: tuple[int, ...] | None
    """Ids that open the assistant turn; None if the context includes them because they are inseparable."""
    opens_thought: bool
    """Whether the assistant turn begins inside a thought."""
    is_open: bool = False
    """Whether the context ends with an open assistant turn."""


class TemplateRenderer(Renderer):
    """Renders contexts with a chat template.

    ``Body.tail`` is a ``Tail``. The preface has no tokens: a template writes the head as part of the
    conversation. Raises ``TemplateError`` if the template is unusable.
    """

    def __init__(
        self,
        template_source: str,
        vocabulary: Vocabulary,
        *,
        bos_token: str = "",
        eos_token: str = "",
        today: SupportsStrftime | None = None,
    ) -> None:
        day = today.strftime("%Y-%m-%d") if today is not None else ""
        digest = hashlib.sha256("\0".join((template_source, bos_token, eos_token, day)).encode())
        super().__init__(f"template {digest.hexdigest()[:12]}", vocabulary)
        self._template = Template(template_source, bos_token=bos_token, eos_token=eos_token, today=today)
        self._finder = ControlTokenFinder(vocabulary, template_source)
        self._eos_token = eos_token
        self._closing = self._find_closing()
        self.output_format = detect_call_format(template_source)

    def stop_ids(self) -> frozenset[int]:
        vocabulary = self.vocabulary
        ids = {vocabulary.control(self._eos_token)} if vocabulary.has_control(self._eos_token) else set()
        closing = self._finder.split(self._closing or "")
        return frozenset(ids.union([piece for piece in closing if isinstance(piece, int)][:1]))

    def start(
        self, head: Head, format: TextFormat, items: Sequence[Item], encoder: BudgetedEncoder
    ) -> Rendered:
        builder = MessageBuilder({}).add(items)
        messages = [*head_messages(head, format), *builder.messages]
        draft = self._draft(messages, template_tools(head.tools.callables), encoder)
        text = draft.write(messages)
        opened = draft.write(messages, prompt=True)
        prompt = draft.rest(text, opened)
        if prompt is None:
            tail = self._tail(messages, builder.pending, None, opened)
            ids = draft.ids(opened)
        else:
            tail = self._tail(messages, builder.pending, draft.ids(prompt), prompt)
            ids = draft.ids(text)
        preface = Preface(head, format, _NOTHING)
        return Rendered(self._writer, preface, empty(tail)).then(ids, tail)

    def append(self, position: Rendered, job: Job, encoder: BudgetedEncoder) -> Rendered:
        tail = _tail(position)
        if not position.preface.covers(job):
            raise CannotAppend(HEAD_CHANGED)
        pending = tail.names
        answer: tuple[ChatMessage, ...] = ()
        if tail.is_open:
            answered = MessageBuilder(pending).add(job.parent.answer if job.parent is not None else ())
            pending, answer = answered.pending, (_answer_stand_in(answered.messages),)
        builder = MessageBuilder(pending).add(job.input)
        new = builder.messages
        if not new and not tail.is_open:
            return position
        if _continues((*tail.stand_in, *answer), new) or (answer and _continues(tail.stand_in, answer)):
            raise CannotAppend(CONTINUES_ASSISTANT)
        if tail.prompt is None and not tail.is_open:
            raise CannotAppend(NO_BOUNDARY)
        messages = [*tail.stand_in, *answer, *new]
        draft = self._draft(messages, PLACEHOLDER_TOOLS if job.head.tools.callables else [], encoder)
        try:
            whole = draft.write(messages)
            if answer:
                text = self._after_answer(draft, tail.stand_in, answer[0], whole)
            else:
                text = draft.require_rest(draft.write(tail.stand_in), whole)
            prompt = draft.require_rest(whole, draft.write(messages, prompt=True))
        except InvalidRequest:
            raise CannotAppend(REFUSES_PART) from None
        if answer and not draft.begins_with_control(text + prompt):
            raise CannotAppend(NO_BOUNDARY)
        if draft.has_placeholders(text + prompt):
            raise CannotAppend(MOVES_EARLIER)
        return position.then(
            draft.ids(text), self._tail(messages, builder.pending, draft.ids(prompt), prompt)
        )

    def open(self, context: Rendered) -> Rendered:
        tail = _tail(context)
        return context.then(tail.prompt or (), structs.replace(tail, is_open=True))

    def opens_thought(self, prompt: Rendered) -> bool:
        return _tail(prompt).opens_thought

    def _after_answer(
        self, draft: "_Draft", before: Sequence[ChatMessage], answer: ChatMessage, whole: str
    ) -> str:
        """Return what the template writes after the model's answer, whose ids are kept as emitted.

        The placeholder of the answer marks its place in ``whole``. The text before it must be the prompt,
        followed by the answer's thoughts if there are any. The text after it is returned.
        """
        prompted = draft.write(before, prompt=True)
        alone = draft.write([*before, answer])
        mark = draft.guard.text(LAST_CALL_PLACEHOLDER if answer.calls else TEXT_PLACEHOLDER)
        at = whole.find(mark, len(prompted))
        if not whole.startswith(prompted) or at < 0 or mark not in alone:
            raise CannotAppend(REWRITES_EARLIER)
        lead = whole[len(prompted) : at]
        if answer.thoughts:
            if draft.guard.text(THOUGHT_PLACEHOLDER) not in lead:
                raise CannotAppend(REWRITES_EARLIER)
        elif answer.content and lead.partition(draft.guard.text(TEXT_PLACEHOLDER))[0]:
            raise CannotAppend(REWRITES_EARLIER)
        after = whole[at + len(mark) :]
        end = alone[alone.rindex(mark) + len(mark) :]
        if not after.startswith(end):
            raise CannotAppend(REWRITES_EARLIER)
        if self._closing is None or not end.endswith(self._closing):
            raise CannotAppend(UNUSUAL_CALL_END)
        return self._closing + after[len(end) :]

    def _draft(
        self, messages: Sequence[ChatMessage], tools: list[dict[str, Any]], encoder: BudgetedEncoder
    ) -> "_Draft":
        return _Draft(self._template, self._finder, encoder, messages, tools)

    def _tail(
        self, messages: Sequence[ChatMessage], pending: PendingCalls, ids: list[int] | None, prompt: str
    ) -> Tail:
        marker = self.output_format.think_open.rstrip()
        opens_thought = bool(marker) and prompt.rstrip().endswith(marker)
        return Tail(stand_in(messages), pending, None if ids is None else tuple(ids), opens_thought)

    def _find_closing(self) -> str | None:
        """What the template writes after an answer; None if it writes no answers."""
        question = ChatMessage(role="user", content="?")
        answered = [question, ChatMessage(role="assistant", content=TEXT_PLACEHOLDER)]
        draft = self._draft(answered, [], BudgetedEncoder(self.vocabulary))
        try:
            draft.write([question], prompt=True)
        except InvalidRequest as error:
            raise TemplateError(f"The chat template cannot render a user message: {error.message}") from None
        try:
            _, mark, closing = draft.write(answered).rpartition(draft.guard.text(TEXT_PLACEHOLDER))
        except InvalidRequest:
            return None
        return closing if mark else None


class _Draft:
    """Renders one conversation several times, with and without its last messages."""

    def __init__(
        self,
        template: Template,
        finder: ControlTokenFinder,
        encoder: BudgetedEncoder,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]],
    ) -> None:
        self._template = template
        self._finder = finder
        self._encoder = encoder
        self.guard = ControlTokenGuard(finder, wire.encode((messages, tools)).decode())
        self._tools: list[dict[str, Any]] = [self.guard.value(tool) for tool in tools]

    def write(self, messages: Sequence[ChatMessage], *, prompt: bool = False) -> str:
        """Render messages; ``prompt``: with an open assistant turn. Raises ``InvalidRequest``."""
        guard = self.guard
        dicts = [message.as_dict(guard.text, guard.value) for message in messages]
        return self._template.render(dicts, self._tools or None, add_generation_prompt=prompt)

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

    def begins_with_control(self, text: str) -> bool:
        return not text or isinstance(self._finder.split(text)[0], int)

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
