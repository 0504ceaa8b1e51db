"""Which forms of conversations a chat template accepts, and how to bring others into these forms.

Templates refuse or ignore what their authors did not think of: a system message after the first message, user
messages in a row, several calls in one message. Clients send all of these. ``find_forms`` tries each form
with the template. ``MessageForms.adapt`` changes messages so that the template writes all of them.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec import Struct, structs

from slipring.prompts.templates.chat_messages import (
    PICTURE_ROLES,
    ChatCall,
    ChatMessage,
    Role,
    has_picture_marks,
    moved_picture_marks,
)

Write = Callable[[Sequence[ChatMessage]], str | None]
"""Writes messages with a template; None if the template refuses them."""

MOVED_PICTURES = "Pictures of the message above:\n"
"""What precedes pictures that were moved to a message of the user."""
_REPLIES = ("", "OK.")
"""Texts of answers to outputs, in the order in which they are tried."""
_FIRST, _SECOND, _THIRD = "FIRST-PROBE", "SECOND-PROBE", "THIRD-PROBE"
_OUTPUTS = ("output-1", "output-2")


class MessageForms(Struct, frozen=True, kw_only=True):
    """The forms that a template accepts. The default is a template that accepts all."""

    system: bool = True
    """A system message at the beginning."""
    systems: bool = True
    """Several system messages at the beginning."""
    late_system: bool = True
    """A system message after other messages."""
    users: bool = True
    """Several user messages in a row."""
    several_calls: bool = True
    """Several calls in one message."""
    text_before_calls: bool = True
    """A text in a message with calls. gpt-oss's template writes it as a thought and refuses both."""
    outputs: bool = True
    """Messages with the role ``tool``."""
    user_after_outputs: bool = True
    """A user message after outputs, without an answer between them."""
    reply: str = ""
    """The text of the answer that is put between them otherwise."""
    pictured: tuple[Role, ...] = PICTURE_ROLES
    """The roles of messages that may have pictures."""

    def adapt(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Bring messages into forms that the template accepts. Every text and picture is kept."""
        if any(each.role not in self.pictured and has_picture_marks(each.content) for each in messages):
            messages = self._move_pictures(messages)
        if not self.several_calls:
            messages = _one_call_each(messages)
        if not self.outputs:
            messages = _outputs_as_text(messages)
        if not (self.system and self.systems and self.late_system):
            messages = self._adapt_systems(messages)
        if not self.users:
            messages = _merge_users(messages)
        if self.user_after_outputs:
            return messages
        return _reply_to_outputs(messages, ChatMessage(role="assistant", content=self.reply))

    def _move_pictures(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Put pictures that stand in other messages, such as outputs, into a message of the user after it, or
        after the last of several outputs."""
        moved: list[ChatMessage] = []
        waiting = ""
        for message in messages:
            if waiting and message.role != "tool":
                moved.append(ChatMessage(role="user", content=MOVED_PICTURES + waiting))
                waiting = ""
            if message.role not in self.pictured:
                text, marks = moved_picture_marks(message.content)
                message = structs.replace(message, content=text) if marks else message
                waiting += marks
            moved.append(message)
        return [*moved, ChatMessage(role="user", content=MOVED_PICTURES + waiting)] if waiting else moved

    def _adapt_systems(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        count = 0
        while count < len(messages) and messages[count].role == "system":
            count += 1
        first, rest = list(messages[:count]), messages[count:]
        if not self.late_system:
            rest = [structs.replace(each, role="user") if each.role == "system" else each for each in rest]
        if not self.system:
            first = [structs.replace(each, role="user") for each in first]
        elif not self.systems and count > 1:
            first = [_joined(first)]
        return [*first, *rest]


ACCEPTS_ALL = MessageForms()


def find_forms(write: Write) -> MessageForms:
    """Try each form with a template."""
    user, answer = ChatMessage(role="user", content=_FIRST), ChatMessage(role="assistant", content=_SECOND)
    system = ChatMessage(role="system", content=_THIRD)
    late = structs.replace(system, content=_SECOND)
    calls = [ChatCall(f"{digit * 9}", name, {}) for digit, name in (("1", _SECOND), ("2", _THIRD))]
    called = ChatMessage(role="assistant", calls=(calls[0],))
    outputs = [
        ChatMessage(role="tool", content=text, call_id=call.id, name=call.name)
        for call, text in zip(calls, _OUTPUTS, strict=True)
    ]

    def writes(texts: Iterable[str], *messages: ChatMessage) -> bool:
        written = write(messages)
        return written is not None and all(text in written for text in texts)

    spoken_call = write([user, structs.replace(called, content=_THIRD)])
    is_thought = spoken_call is not None and _THIRD in spoken_call
    is_thought = is_thought and spoken_call == write([user, structs.replace(called, thoughts=_THIRD)])
    has_outputs = writes(_OUTPUTS[:1], user, called, outputs[0])
    both = structs.replace(called, calls=tuple(calls))
    reply: str | None = None
    if has_outputs:
        spoken = (user, called, outputs[0], structs.replace(user, content=_THIRD))
        texts = (_FIRST, _OUTPUTS[0], _THIRD)
        replied = (
            (text, _reply_to_outputs(spoken, structs.replace(answer, content=text))) for text in _REPLIES
        )
        if not writes(texts, *spoken):
            reply = next((text for text, messages in replied if writes(texts, *messages)), None)
    return MessageForms(
        system=writes((_FIRST, _THIRD), system, user),
        systems=writes((_FIRST, _SECOND, _THIRD), system, late, user),
        late_system=writes((_FIRST, _SECOND, _THIRD), user, answer, system, user),
        users=writes((_FIRST, _THIRD), user, structs.replace(user, content=_THIRD)),
        several_calls=any(  # Kimi K2.5's writes ids in place of names
            writes(texts, user, both) for texts in ((_SECOND, _THIRD), [call.id for call in calls])
        )
        and (not has_outputs or writes(_OUTPUTS, user, both, *outputs)),
        text_before_calls=not is_thought,
        outputs=has_outputs,
        user_after_outputs=reply is None,
        reply=reply or "",
    )


def _joined(messages: Sequence[ChatMessage]) -> ChatMessage:
    """One message with the texts of several."""
    texts = [message.content for message in messages if message.content]
    return structs.replace(messages[0], content="\n\n".join(texts))


def _merge_users(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    merged: list[ChatMessage] = []
    for is_user, group in groupby(messages, lambda message: message.role == "user"):
        run = list(group)
        merged += [_joined(run)] if is_user and len(run) > 1 else run
    return merged


def _reply_to_outputs(messages: Sequence[ChatMessage], reply: ChatMessage) -> list[ChatMessage]:
    """Put an answer between outputs and a user message."""
    replied: list[ChatMessage] = []
    for message in messages:
        if message.role == "user" and replied and replied[-1].role == "tool":
            replied.append(reply)
        replied.append(message)
    return replied


def _one_call_each(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Give each call a message of its own, followed by the output that answers it."""
    split: list[ChatMessage] = []
    outputs = {message.call_id: message for message in messages if message.role == "tool"}
    placed: set[str] = set()
    for message in messages:
        if len(message.calls) > 1:
            for number, call in enumerate(message.calls):
                first = message if not number else ChatMessage(role="assistant")
                split.append(structs.replace(first, calls=(call,)))
                if call.id in outputs:
                    split.append(outputs[call.id])
                    placed.add(call.id)
        elif message.role != "tool" or message.call_id not in placed:
            split.append(message)
    return split


def _outputs_as_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Write outputs as messages of the user, for a template that has no form for them."""
    plain: list[ChatMessage] = []
    for is_output, group in groupby(messages, lambda message: message.role == "tool"):
        if is_output:
            outputs = [f"<tool_response>\n{message.content}\n</tool_response>" for message in group]
            plain.append(ChatMessage(role="user", content="\n".join(outputs)))
        else:
            plain += group
    return plain
