"""What a template adds to a context for new messages, and which thoughts stay in the context meanwhile."""

from collections.abc import Sequence

from msgspec import Struct, structs

from slipring.prompts.chain_choices import LOOP_THOUGHTS
from slipring.prompts.full_renders import (
    ASKED_TO_DROP,
    DROPS_THOUGHTS,
    EFFORT_CHANGED,
    NO_BOUNDARY,
    REWRITES_EARLIER,
    CannotAppend,
)
from slipring.prompts.templates.chat_messages import ChatMessage
from slipring.prompts.templates.jinja_engines import Variables
from slipring.prompts.templates.probed_template import ProbedTemplate, ThoughtsKept
from slipring.prompts.templates.stand_ins import (
    LAST_CALL_PLACEHOLDER,
    TEXT_PLACEHOLDER,
    loop_thoughts,
    without_thoughts,
)
from slipring.prompts.templates.template_draft import Draft, squeezed


def in_current_turn(messages: list[ChatMessage]) -> list[ChatMessage]:
    """The messages without the thoughts before the last message of the user."""
    start = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    return [*map(without_thoughts, messages[:start]), *messages[start:]]


class Addition(Struct, frozen=True):
    """What a template adds to a context for new messages."""

    probed: ProbedTemplate
    draft: Draft
    before: tuple[ChatMessage, ...]
    """The stand-in of the context."""
    answer: ChatMessage | None
    """The stand-in of the answer that the model gave to it; its ids are kept as emitted."""
    new: Sequence[ChatMessage]
    earlier: Variables
    """Those that the context was rendered with."""
    kept: ThoughtsKept

    def written(self) -> tuple[str, str | None]:
        """The text of the new messages, and what then opens the assistant turn; None for the latter if it is
        inseparable from the former. Raises ``CannotAppend``, or ``InvalidRequest`` of the template."""
        if self.kept == "turn" and in_current_turn(self._messages()) != self._messages():
            raise CannotAppend(ASKED_TO_DROP)
        if self.answer is not None and self._keeps_dropped_thoughts():
            before = tuple(map(without_thoughts, self.before))
            return structs.replace(self, before=before, answer=without_thoughts(self.answer))._difference(
                keeps_dropped=True
            )
        return self._difference(keeps_dropped=False)

    def _difference(self, *, keeps_dropped: bool) -> tuple[str, str | None]:
        """``keeps_dropped``: thoughts were taken from the messages, and stay in the context."""
        draft, messages = self.draft, self._messages()
        whole, opened = draft.write(messages), draft.write(messages, prompt=True)
        prompt = draft.rest(whole, opened)
        if prompt is None:
            whole = opened
        if self.answer is not None:
            return self._after_answer(self.answer, whole, keeps_dropped=keeps_dropped), prompt
        return draft.require_rest(draft.write(self.before, variables=self.earlier), whole), prompt

    def _messages(self) -> list[ChatMessage]:
        return [*self.before, *([self.answer] if self.answer else []), *self.new]

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
        written = draft.count_thoughts(draft.write(self.before, prompt=True, variables=self.earlier))
        expected = max(written, loop_thoughts(self.before)) + bool(answer.thoughts)
        if draft.count_thoughts(draft.write(self._messages())) >= expected:
            return False
        # Formats without marks of thoughts: those of an answer are no part of its ids.
        in_loop = LOOP_THOUGHTS in probed.chain_choices or not probed.output_format.think_close
        if not in_loop or any(message.role != "tool" for message in self.new):
            raise CannotAppend(DROPS_THOUGHTS)
        if draft.count_thoughts(draft.write(self._messages(), variables=self.earlier)) >= expected:
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
        start = draft.write(self.before, prompt=True, variables=self.earlier)
        kept = draft.kept(start, whole[: max(at, 0)])
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
