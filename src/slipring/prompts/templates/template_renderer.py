"""Contexts written with the model's own chat template, by delta where the template allows it.

A template writes whole conversations. What it adds for new messages is found by letting it write a stand-in
for what came before, once alone and once with the new messages: the difference is the delta, at a cost that
does not grow with the conversation. Every time it is checked that the first is the beginning of the second
and that the two meet at a control token; where they do not, everything is rendered.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from slipring.core.chain.head import Head
from slipring.core.generation import Job
from slipring.errors import InvalidRequest
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.llama3 import Llama3
from slipring.prompts.parsing.parser import CallFormat
from slipring.prompts.rendering import Preface, Rendered, Renderer, Rewritten, Step, empty
from slipring.prompts.templates.chat_messages import (
    ChatMessage,
    Folder,
    Names,
    head_messages,
    tool_definitions,
)
from slipring.prompts.templates.jinja import Dated, Template, TemplateError
from slipring.prompts.templates.template_probes import (
    ALL_WORDS,
    CALLED,
    SAID,
    THOUGHT,
    TOOLS,
    answer,
    stand_in,
)
from slipring.prompts.tokenization.control_token_guard import Guard, Lookalikes
from slipring.prompts.tokenization.token_budget import Encoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items import Item
from slipring.protocol.requests import TextFormat

HEAD_CHANGED = "the head changed"
REWRITES = "the template rewrites earlier turns"
MOVES = "the template writes earlier parts among the new ones"
GOES_ON = "an earlier message of the assistant goes on"
REFUSES = "the template cannot write a part of the conversation alone"
NO_SEAM = "the template's parts do not meet at a control token"
ENDS_OTHERWISE = "the template ends answers with calls in another way than others"

_NOTHING = Step.of(())


class Tail(Struct, frozen=True):
    """What has to be known of a context to go on with it."""

    stand_in: tuple[ChatMessage, ...]
    names: Names
    prompt: tuple[int, ...] | None
    """What opens the model's turn after it; None where that cannot be told apart and is in it already."""
    opens_thought: bool
    """Whether the model's turn begins inside a thought."""
    is_open: bool = False
    """Whether it is the model's turn: what it says follows, and is not closed."""


class TemplateRenderer(Renderer):
    """Writes contexts with a chat template. The tail of a body is a ``Tail``; the preface has no tokens."""

    def __init__(
        self,
        template_source: str,
        vocabulary: Vocabulary,
        *,
        bos_token: str = "",
        eos_token: str = "",
        today: Dated | None = None,
    ) -> None:
        day = today.strftime("%Y-%m-%d") if today is not None else ""
        digest = hashlib.sha256("\0".join((template_source, bos_token, eos_token, day)).encode())
        super().__init__(f"template {digest.hexdigest()[:12]}", vocabulary)
        self._template = Template(template_source, bos_token=bos_token, eos_token=eos_token, today=today)
        self._lookalikes = Lookalikes(vocabulary, template_source)
        self._eos_token = eos_token
        self._closing = self._find_closing()
        self.calls = choose_calls(template_source)

    def stop_ids(self) -> frozenset[int]:
        vocabulary = self.vocabulary
        ids = {vocabulary.control(self._eos_token)} if vocabulary.has_control(self._eos_token) else set()
        closing = self._lookalikes.split(self._closing or "")
        return frozenset(ids.union([piece for piece in closing if isinstance(piece, int)][:1]))

    def start(self, head: Head, format: TextFormat, items: Sequence[Item], encoder: Encoder) -> Rendered:
        folder = Folder({}).read(items)
        messages = [*head_messages(head, format), *folder.messages]
        draft = self._draft(messages, tool_definitions(head.tools.callables), encoder)
        text = draft.write(messages)
        opened = draft.write(messages, prompt=True)
        prompt = draft.rest(text, opened)
        if prompt is None:
            tail = self._tail(messages, folder.names, None, opened)
            ids = draft.ids(opened)
        else:
            tail = self._tail(messages, folder.names, draft.ids(prompt), prompt)
            ids = draft.ids(text)
        preface = Preface(head, format, _NOTHING)
        return Rendered(self._writer, preface, empty(tail)).then(ids, tail)

    def append(self, position: Rendered, job: Job, encoder: Encoder) -> Rendered:
        tail = _tail(position)
        if not position.preface.covers(job):
            raise Rewritten(HEAD_CHANGED)
        names = tail.names
        spoken: tuple[ChatMessage, ...] = ()
        if tail.is_open:
            said = Folder(names).read(job.parent.answer if job.parent is not None else ())
            names, spoken = said.names, (_answer(said.messages),)
        folder = Folder(names).read(job.input)
        new = folder.messages
        if not new and not tail.is_open:
            return position
        if _continues((*tail.stand_in, *spoken), new) or (spoken and _continues(tail.stand_in, spoken)):
            raise Rewritten(GOES_ON)
        if tail.prompt is None and not tail.is_open:
            raise Rewritten(NO_SEAM)
        messages = [*tail.stand_in, *spoken, *new]
        draft = self._draft(messages, TOOLS if job.head.tools.callables else [], encoder)
        try:
            whole = draft.write(messages)
            if spoken:
                text = self._after_answer(draft, tail.stand_in, spoken[0], whole)
            else:
                text = draft.rest_or_rewrite(draft.write(tail.stand_in), whole)
            prompt = draft.rest_or_rewrite(whole, draft.write(messages, prompt=True))
        except InvalidRequest:
            raise Rewritten(REFUSES) from None
        if spoken and not draft.begins_with_control(text + prompt):
            raise Rewritten(NO_SEAM)
        if draft.has_stand_ins(text + prompt):
            raise Rewritten(MOVES)
        return position.then(draft.ids(text), self._tail(messages, folder.names, draft.ids(prompt), prompt))

    def open(self, context: Rendered) -> Rendered:
        tail = _tail(context)
        return context.then(tail.prompt or (), structs.replace(tail, is_open=True))

    def opens_thought(self, prompt: Rendered) -> bool:
        return _tail(prompt).opens_thought

    def _after_answer(
        self, draft: "_Draft", before: Sequence[ChatMessage], spoken: ChatMessage, whole: str
    ) -> str:
        """What the template writes after an answer that the model has given by itself.

        The answer is known by its stand-in: what stands before that must be what the model was prompted with,
        with its thoughts where there were any; what stands after is wanted.
        """
        prompted = draft.write(before, prompt=True)
        alone = draft.write([*before, spoken])
        mark = draft.guard.text(CALLED if spoken.calls else SAID)
        at = whole.find(mark, len(prompted))
        if not whole.startswith(prompted) or at < 0 or mark not in alone:
            raise Rewritten(REWRITES)
        lead = whole[len(prompted) : at]
        if spoken.thoughts:
            if draft.guard.text(THOUGHT) not in lead:
                raise Rewritten(REWRITES)
        elif spoken.content and lead.partition(draft.guard.text(SAID))[0]:
            raise Rewritten(REWRITES)
        after = whole[at + len(mark) :]
        end = alone[alone.rindex(mark) + len(mark) :]
        if not after.startswith(end):
            raise Rewritten(REWRITES)
        if self._closing is None or not end.endswith(self._closing):
            raise Rewritten(ENDS_OTHERWISE)
        return self._closing + after[len(end) :]

    def _draft(
        self, messages: Sequence[ChatMessage], tools: list[dict[str, Any]], encoder: Encoder
    ) -> "_Draft":
        return _Draft(self._template, self._lookalikes, encoder, messages, tools)

    def _tail(
        self, messages: Sequence[ChatMessage], names: Names, ids: list[int] | None, prompt: str
    ) -> Tail:
        marker = self.calls.think_open
        opens_thought = bool(marker) and prompt.rstrip().endswith(marker)
        return Tail(stand_in(messages), names, None if ids is None else tuple(ids), opens_thought)

    def _find_closing(self) -> str | None:
        """What the template writes after an answer; None where it does not write answers."""
        question = ChatMessage(role="user", content="?")
        said = [question, ChatMessage(role="assistant", content=SAID)]
        draft = self._draft(said, [], Encoder(self.vocabulary))
        try:
            draft.write([question], prompt=True)
        except InvalidRequest as refusal:
            raise TemplateError(f"The chat template is of no use: {refusal.message}") from None
        try:
            _, mark, closing = draft.write(said).rpartition(draft.guard.text(SAID))
        except InvalidRequest:
            return None
        return closing if mark else None


class _Draft:
    """A conversation that is written more than once: with and without its end."""

    def __init__(
        self,
        template: Template,
        lookalikes: Lookalikes,
        encoder: Encoder,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]],
    ) -> None:
        self._template = template
        self._lookalikes = lookalikes
        self._encoder = encoder
        self.guard = Guard(lookalikes, wire.encode((messages, tools)).decode())
        self._tools: list[dict[str, Any]] = [self.guard.value(tool) for tool in tools]

    def write(self, messages: Sequence[ChatMessage], *, prompt: bool = False) -> str:
        guard = self.guard
        written = [message.as_dict(guard.text, guard.value) for message in messages]
        return self._template.render(written, self._tools or None, add_generation_prompt=prompt)

    def rest(self, text: str, longer: str) -> str | None:
        """What a longer text has after a text; None if it does not begin with it, or goes on in mid-word."""
        if not longer.startswith(text):
            return None
        rest = longer[len(text) :]
        left, right = self._lookalikes.split(text), self._lookalikes.split(rest)
        if left and right and isinstance(left[-1], str) and isinstance(right[0], str):
            return None
        return rest if self._lookalikes.split(longer) == left + right else None

    def rest_or_rewrite(self, text: str, longer: str) -> str:
        rest = self.rest(text, longer)
        if rest is None:
            raise Rewritten(NO_SEAM if longer.startswith(text) else REWRITES)
        return rest

    def begins_with_control(self, text: str) -> bool:
        return not text or isinstance(self._lookalikes.split(text)[0], int)

    def has_stand_ins(self, text: str) -> bool:
        return any(self.guard.text(words) in text for words in ALL_WORDS)

    def ids(self, text: str) -> list[int]:
        """The ids of what was written: control tokens by name, each text between them by itself."""
        ids: list[int] = []
        pieces = self.guard.mend(self._lookalikes.split(text))
        self._encoder.expect(piece for piece in pieces if isinstance(piece, str))
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                self._encoder.spend(1)
            else:
                ids += self._encoder.encode(piece)
        return ids


def choose_calls(source: str) -> CallFormat:
    """How the model writes calls and thoughts, by what its template mentions."""
    if "<tool_call>" in source:
        return ChatMl.calls
    if "<|python_tag|>" in source or '"parameters"' in source.replace('\\"', '"'):
        calls = Llama3.calls
    else:
        calls = CallFormat(bare_json=True)
    if "<think>" in source:
        calls = structs.replace(calls, think_open="<think>", think_close="</think>")
    return calls


def _tail(rendered: Rendered) -> Tail:
    tail = rendered.body.tail
    assert isinstance(tail, Tail)
    return tail


def _answer(said: Sequence[ChatMessage]) -> ChatMessage:
    spoken = answer(said)
    if spoken is None:
        raise Rewritten(REWRITES)
    return spoken


def _continues(before: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> bool:
    """Whether an assistant would speak after itself: within the whole, that is one message."""
    return bool(before and new) and before[-1].role == new[0].role == "assistant"
