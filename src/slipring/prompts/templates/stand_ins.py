"""Stand-ins: short conversations that replace a long one, to find out what a template writes after it.

What a template writes for new messages depends on the form of the earlier ones (the last role, pending calls,
presence of thoughts), not on their texts. A stand-in has the same form with placeholders as texts, so that
its size does not grow with the conversation and its texts can be found in the template's output.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from msgspec import structs

from slipring.prompts.templates.chat_messages import ChatCall, ChatMessage

TEXT_PLACEHOLDER = "((assistant text))"
THOUGHT_PLACEHOLDER = "((assistant thought))"
LAST_CALL_PLACEHOLDER = "((last call))"
_CALL_PLACEHOLDER = "((earlier call))"
NEXT_PLACEHOLDER = "((next message))"
_TOOL = "stand_in_tool"
_TEXT_PLACEHOLDERS = {
    "system": "((system text))",
    "user": "((user text))",
    "assistant": TEXT_PLACEHOLDER,
    "tool": "((tool output))",
}
ALL_PLACEHOLDERS = (
    *_TEXT_PLACEHOLDERS.values(),
    THOUGHT_PLACEHOLDER,
    LAST_CALL_PLACEHOLDER,
    _CALL_PLACEHOLDER,
    _TOOL,
)
"""Stored with stand-ins: increase the version of ``rendering_codec`` when changing one."""
PLACEHOLDER_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": _TOOL,
            "parameters": {"type": "object", "properties": {}},
        },
    }
]


def stand_in(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return the stand-in of a conversation.

    Idempotent: the stand-in of a stand-in plus new messages equals that of the conversation plus the same
    messages. Kept are:

    - the first message, unless it is a user's;
    - the last user message;
    - the last message with thoughts, the message that follows and the user message before it;
    - the last message or, if it is a tool output or a developer's, the last run of these and the message
      before them;
    - the outputs that follow calls, with these.
    """
    last_user = _last(at for at, message in enumerate(messages) if message.role == "user")
    thought = _last(at for at, message in enumerate(messages) if message.thoughts)
    recent = len(messages) - 1
    while recent > 0 and messages[recent].role in ("tool", "system"):
        recent -= 1
    kept = {last_user, *range(max(recent, last_user), len(messages))}
    if messages and messages[0].role != "user":
        kept.add(0)
    if thought >= 0:
        asked = _last(at for at, message in enumerate(messages[:thought]) if message.role == "user")
        kept.update((asked, thought, min(thought + 1, len(messages) - 1)))
    for at in sorted(kept):
        if at >= 0 and messages[at].calls:
            kept.update(_outputs_after(messages, at))
    return tuple(_with_placeholders(messages[at]) for at in sorted(kept) if at >= 0)


def _outputs_after(messages: Sequence[ChatMessage], at: int) -> Iterator[int]:
    """Where the outputs are that follow a message."""
    return takewhile(lambda each: messages[each].role == "tool", range(at + 1, len(messages)))


def _last(indices: Iterable[int]) -> int:
    return max(indices, default=-1)


def answer_stand_in(answer: Sequence[ChatMessage]) -> ChatMessage | None:
    """Return the stand-in of the model's latest answer; None if that is not one assistant message."""
    if not answer:
        return ChatMessage(role="assistant", content=TEXT_PLACEHOLDER)
    return _with_placeholders(answer[0]) if len(answer) == 1 and answer[0].role == "assistant" else None


def _with_placeholders(message: ChatMessage) -> ChatMessage:
    """Replace the texts of a message. Names and ids stay: templates match calls and outputs by them."""
    calls = [ChatCall(call.id, call.name, {"argument": _CALL_PLACEHOLDER}) for call in message.calls]
    if calls:
        calls[-1] = ChatCall(calls[-1].id, calls[-1].name, {"argument": LAST_CALL_PLACEHOLDER})
    return ChatMessage(
        role=message.role,
        content=_TEXT_PLACEHOLDERS[message.role] if message.content or not calls else "",
        thoughts=THOUGHT_PLACEHOLDER if message.thoughts else "",
        calls=tuple(calls),
        call_id=message.call_id,
        name=message.name,
    )


def with_thoughts(message: ChatMessage) -> ChatMessage:
    return structs.replace(message, thoughts=THOUGHT_PLACEHOLDER)


def without_thoughts(message: ChatMessage) -> ChatMessage:
    return structs.replace(message, thoughts="") if message.thoughts else message


def with_earlier_calls(messages: Sequence[ChatMessage], count: int) -> tuple[ChatMessage, ...]:
    """A stand-in with so many answered calls more, for templates that number all calls of a conversation:
    after the last message of a user or developer, or, if that is the end, before the last user message or,
    without one, before the last answer, where it says no less about what the next answer follows."""
    calls = earlier_calls(count)
    at = 1 + _last(at for at, message in enumerate(messages) if message.role in ("user", "system"))
    if at == len(messages):
        last_user = _last(at for at, message in enumerate(messages) if message.role == "user")
        if last_user >= 0:
            calls, at = ([QUESTION, *calls] if calls else []), last_user
        else:
            at = max(_last(at for at, message in enumerate(messages) if message.role == "assistant"), 0)
    return (*messages[:at], *calls, *messages[at:])


def earlier_calls(count: int) -> list[ChatMessage]:
    """So many answered calls."""
    return [each for number in range(count) for each in _exchange(number)]


def _exchange(number: int) -> tuple[ChatMessage, ChatMessage]:
    """A call with an id of its own, and its output."""
    call = ChatCall(f"{number:09x}", _TOOL, {"argument": _CALL_PLACEHOLDER})
    output = ChatMessage(role="tool", content=_TEXT_PLACEHOLDERS["tool"], call_id=call.id, name=call.name)
    return ChatMessage(role="assistant", calls=(call,)), output


def count_calls(messages: Iterable[ChatMessage]) -> int:
    return sum(len(message.calls) for message in messages)


def loop_thoughts(messages: Sequence[ChatMessage]) -> int:
    """How many messages have thoughts after the last message of a user or developer."""
    spoken = _last(at for at, message in enumerate(messages) if message.role in ("user", "system"))
    return sum(bool(message.thoughts) for message in messages[spoken + 1 :])


QUESTION = ChatMessage(role="user", content=_TEXT_PLACEHOLDERS["user"])
_CALL = ChatCall("a1b2c3d4e", _TOOL, {"argument": LAST_CALL_PLACEHOLDER})
ANSWERED = (
    QUESTION,
    ChatMessage(role="assistant", content=TEXT_PLACEHOLDER),
    ChatMessage(role="user", content=NEXT_PLACEHOLDER),
)
"""A conversation that shows how a template ends an answer of text."""
CALLED = (
    QUESTION,
    ChatMessage(role="assistant", calls=(_CALL,)),
    ChatMessage(role="tool", content=NEXT_PLACEHOLDER, call_id=_CALL.id, name=_CALL.name),
)
"""A conversation that shows how a template ends an answer of calls."""
EARLIER_ANSWERS = (
    *ANSWERED[:2],
    QUESTION,
    with_thoughts(ANSWERED[1]),
    QUESTION,
    with_thoughts(CALLED[1]),
    CALLED[2],
    with_thoughts(ANSWERED[1]),
    ANSWERED[2],
)
"""A conversation with answers of every kind, before the last message of the user."""
