"""The Messages API as its clients use it: the whole conversation in every request, and its events.

A breakpoint for caches stands on the last block of the last message, as agents place it: it moves with every
turn.
"""

from typing import Any

import msgspec

from slipring.commands.bench.client.exchange import Event, Fields, TurnExchange, TurnFailed, refusal
from slipring.commands.bench.client.rebuilt_answer import RebuiltAnswer
from slipring.commands.bench.workloads.plan import Item, text_of

_MAX_TOKENS = 4096
"""The API requires a limit. That of ``--max-output-tokens`` is sent instead, if there is one."""
_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
_CHOICES = {"required": {"type": "any"}, "none": {"type": "none"}, "auto": {"type": "auto"}}
_CUTS = ("max_tokens", "model_context_window_exceeded")


class MessagesHistory:
    """The client keeps the conversation and sends all of it in every turn."""

    previous_response_id = None
    is_open = False

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._add(new)
        *before, last = self._messages
        *blocks, block = last["content"]
        marked = {**last, "content": [*blocks, {**block, **_BREAKPOINT}]}
        return {**_head(head), "messages": [*before, marked]}

    def learn(self, exchange: TurnExchange) -> None:
        self._add(exchange.answer)

    def fork(self) -> "MessagesHistory":
        forked = MessagesHistory()
        forked._messages = [{**each, "content": [*each["content"]]} for each in self._messages]
        return forked

    def _add(self, items: list[Item]) -> None:
        for item in items:
            role, block = _block(item)
            if not self._messages or self._messages[-1]["role"] != role:
                self._messages.append({"role": role, "content": []})
            self._messages[-1]["content"].append(block)


def _head(head: Fields) -> Fields:
    """The fields beside the messages. Those that this API does not have are left out."""
    fields: Fields = {"model": head["model"], "max_tokens": head.get("max_output_tokens", _MAX_TOKENS)}
    if head.get("instructions"):
        fields["system"] = [{"type": "text", "text": head["instructions"], **_BREAKPOINT}]
    if head.get("tools"):
        fields["tools"] = [_tool(tool) for tool in head["tools"]]
    if isinstance(choice := head.get("tool_choice"), str):
        fields["tool_choice"] = _CHOICES[choice]
    if "reasoning.encrypted_content" in head.get("include", ()):
        fields["thinking"] = {"type": "adaptive"}
    return fields | {name: head[name] for name in ("temperature", "top_p") if name in head}


def _tool(tool: Item) -> Fields:
    if tool.get("type") != "function":
        raise TurnFailed(f"the Messages API has no tool of the type {tool.get('type')}")
    described = {"description": tool["description"]} if tool.get("description") else {}
    return {"name": tool["name"], **described, "input_schema": tool.get("parameters") or {"type": "object"}}


def _block(item: Item) -> tuple[str, dict[str, Any]]:
    """The role of the message that an item belongs to, and its block."""
    kind = item.get("type", "message")
    if kind == "message":
        role = "system" if item["role"] in ("developer", "system") else item["role"]
        return role, {"type": "text", "text": text_of(item["content"])}
    if kind == "function_call":
        given = msgspec.Raw(item["arguments"].encode() or b"{}")
        return "assistant", {
            "type": "tool_use",
            "id": item["call_id"],
            "name": item["name"],
            "input": given,
        }
    if kind == "function_call_output":
        return "user", {
            "type": "tool_result",
            "tool_use_id": item["call_id"],
            "content": text_of(item["output"]),
        }
    if kind == "reasoning" and item.get("encrypted_content"):
        thought = text_of(item.get("content"))
        return "assistant", {"type": "thinking", "thinking": thought, "signature": item["encrypted_content"]}
    raise TurnFailed(f"the Messages API has no item of the type {kind}")


def returned(answer: list[Item]) -> list[Item]:
    """An answer as the server gets it back: the input of a call is an object, without its spelling."""
    return [
        {**item, "arguments": msgspec.json.format(item["arguments"] or "{}", indent=-1)}
        if item["type"] == "function_call"
        else item
        for item in answer
    ]


class MessagesReader:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self.answer = RebuiltAnswer()
        self._read: dict[str, Any] = {}

    def see(self, event: Event) -> None:
        """Take the next event. Raises ``RefusedByServer`` for an error."""
        kind = event.get("type")
        if kind == "error":
            raise refusal(event)
        if kind == "message_start":
            self._read = dict(event["message"]["usage"])
            self.answer.begin(event["message"]["id"])
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            self.answer.call(event["content_block"]["id"], event["content_block"]["name"])
        elif kind == "content_block_delta":
            self._delta(event["delta"])
        elif kind == "content_block_stop":
            self.answer.close()
        elif kind == "message_delta":
            self._end(event)

    def finish(self) -> None:
        """The stream has ended."""

    def _delta(self, delta: dict[str, Any]) -> None:
        kind = delta["type"]
        if kind == "text_delta":
            self.answer.text(delta["text"])
        elif kind == "input_json_delta":
            self.answer.arguments(delta["partial_json"])
        elif kind == "thinking_delta":
            self.answer.thought(delta["thinking"])
        elif kind == "signature_delta":
            self.answer.thought("")
            self.answer.sign(delta["signature"])

    def _end(self, event: Event) -> None:
        usage = self._read | {name: count for name, count in event["usage"].items() if count is not None}
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        details = usage.get("output_tokens_details") or {}
        self.answer.end(
            is_cut=event["delta"]["stop_reason"] in _CUTS,
            read=usage["input_tokens"] + cached + written,
            cached=cached,
            written=usage["output_tokens"],
            thought=details.get("thinking_tokens") or 0,
        )
