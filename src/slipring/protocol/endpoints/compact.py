"""Requests to compact a window of items, as create requests with a trigger."""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.items.items import MOST_ITEMS
from slipring.protocol.requests import (
    CreateRequest,
    PromptCacheOptions,
    ReasoningConfig,
    ServiceTier,
    TextConfig,
)
from slipring.protocol.responses import Usage

_TRIGGER = b'{"type":"compaction_trigger"}'


class CompactRequest(Struct):
    """A subset of a create's fields, with the same meaning."""

    model: str
    input: Raw | UnsetType = UNSET
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    service_tier: ServiceTier | None = None

    def as_create(self) -> CreateRequest:
        """The equivalent create: the same context with a ``compaction_trigger`` as its last item."""
        return CreateRequest(
            model=self.model,
            input=_triggered(self.input),
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            tools=self.tools,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning=self.reasoning,
            text=self.text,
            prompt_cache_key=self.prompt_cache_key,
            service_tier=self.service_tier,
            store=False,
        )


class Window(Struct):
    """A compacted context, to be sent as the input of a new chain."""

    id: str
    created_at: int
    output: list[Raw]
    usage: Usage
    object: Literal["response.compaction"] = "response.compaction"


_compact_request = msgspec.json.Decoder(CompactRequest)
_compact_input = msgspec.json.Decoder(str | list[Raw])


def read_compact(body: bytes) -> CompactRequest:
    return wire.decode(_compact_request, body)


def _triggered(data: Raw | UnsetType) -> Raw:
    sent = wire.given(data)
    if sent is not None:
        wire.require_few(sent, MOST_ITEMS, "input", "items")
    value = wire.decode(_compact_input, sent, where="input") if sent is not None else []
    items = [wire.raw({"role": "user", "content": value})] if isinstance(value, str) else value
    return Raw(b"[" + b",".join([*map(bytes, items), _TRIGGER]) + b"]")
