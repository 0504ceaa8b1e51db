"""The body of a chat completion that is not streamed."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.protocol.chat_completions.answer import ChatChoice
from slipring.protocol.chat_completions.moderation import Moderation
from slipring.protocol.chat_completions.usage import CompletionUsage
from slipring.protocol.responses import Response

_ID = "chatcmpl-"


class ChatCompletion(Struct):
    """The whole answer to a request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage | None
    service_tier: str
    system_fingerprint: str
    metadata: dict[str, str] | UnsetType = UNSET
    moderation: Moderation | UnsetType = UNSET
    object: Literal["chat.completion"] = "chat.completion"


def completion_id(response: Response) -> str:
    return _ID + response.id.partition("_")[2]
