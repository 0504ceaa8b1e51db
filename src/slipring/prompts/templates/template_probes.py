"""Stand-ins: a short conversation that ends as a long one ends, for asking a template how it goes on.

What a template writes for new messages depends on what stands before them only by its form: who spoke last,
which calls wait, whether there were thoughts. A stand-in keeps that form and says known words instead of the
real ones, so that its size does not grow with the conversation, and its words are found in what is written.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from slipring.prompts.templates.chat_messages import ChatCall, ChatMessage

SAID = "[[what the assistant said]]"
THOUGHT = "[[what the assistant thought]]"
CALLED = "[[how the assistant called last]]"
_CALLED_EARLIER = "[[how the assistant called]]"
_TOOL = "stand_in_tool"
_WORDS = {
    "system": "[[what the system said]]",
    "user": "[[what the user said]]",
    "assistant": SAID,
    "tool": "[[what the tool returned]]",
}
ALL_WORDS = (*_WORDS.values(), THOUGHT, CALLED, _CALLED_EARLIER, _TOOL)
TOOLS: list[dict[str, Any]] = [
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
    """Shorten a conversation. Of one that was shortened and gone on with, the same comes out.

    Kept are a beginning that is no user's and the last message of a user; after it, the last message that has
    thoughts with the one that follows, and the end: the last message, or the last outputs of tools with the
    message before them.
    """
    asked = _last(at for at, message in enumerate(messages) if message.role == "user")
    thought = _last(at for at, message in enumerate(messages) if message.thoughts and at > asked)
    recent = len(messages) - 1
    while recent > 0 and messages[recent].role == "tool":
        recent -= 1
    kept = {asked, *range(max(recent, asked), len(messages))}
    if messages and messages[0].role != "user":
        kept.add(0)
    if thought >= 0:
        kept.update((thought, min(thought + 1, len(messages) - 1)))
    return tuple(_hollow(messages[at]) for at in sorted(kept) if at >= 0)


def _last(places: Iterable[int]) -> int:
    return max(places, default=-1)


def answer(said: Sequence[ChatMessage]) -> ChatMessage | None:
    """The stand-in for what a model has just answered; None where that is not one message of it."""
    if not said:
        return ChatMessage(role="assistant", content=SAID)
    return _hollow(said[0]) if len(said) == 1 and said[0].role == "assistant" else None


def _hollow(message: ChatMessage) -> ChatMessage:
    """A message of the same form: names and ids stay, for templates look calls up by them."""
    calls = [ChatCall(call.id, call.name, {"argument": _CALLED_EARLIER}) for call in message.calls]
    if calls:
        calls[-1] = ChatCall(calls[-1].id, calls[-1].name, {"argument": CALLED})
    return ChatMessage(
        role=message.role,
        content=_WORDS[message.role] if message.content or not calls else "",
        thoughts=THOUGHT if message.thoughts else "",
        calls=tuple(calls),
        call_id=message.call_id,
        name=message.name,
    )
