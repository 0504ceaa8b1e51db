"""Chat Completions and Messages as their clients use them: the whole conversation in every request, and the
stream of an answer as the events of a response, which is how the bench measures and checks answers.

Each piece that arrives becomes the events that the Responses API has for it. Nothing is added that did not
arrive but the beginnings and ends of items. In Messages, a breakpoint for caches stands on the last block of
the last message, as agents place it: it moves with every turn.
"""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from slipring.commands.bench.client.exchange import Event, Fields, TurnExchange, TurnFailed, refusal
from slipring.commands.bench.client.turn_requests import Context
from slipring.commands.bench.workloads.plan import Item, text_of

_MAX_TOKENS = 4096
"""Messages requires a limit. That of ``--max-output-tokens`` is sent instead, if there is one."""
_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
_CHOICES = {"required": {"type": "any"}, "none": {"type": "none"}, "auto": {"type": "auto"}}
_CUTS = ("max_tokens", "model_context_window_exceeded")


class AnswerReader(ABC):
    """Reads the stream of one answer, and collects the events that a response would have."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._numbers = 0
        self._id = ""
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._text = ""
        """What has arrived of the open item."""

    @abstractmethod
    def see(self, event: Event) -> None:
        """Read what has arrived. Raises ``TurnFailed`` for an error."""

    def finish(self) -> None:  # noqa: B027 - Messages says itself when an answer ends
        """The stream has ended."""

    def take(self) -> list[Event]:
        """The events since the last call."""
        taken, self._events = self._events, []
        return taken

    @property
    def open_kind(self) -> str | None:
        return None if self._open is None else str(self._open["type"])

    def begin(self, answer_id: str) -> None:
        self._id = answer_id
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, response={"id": answer_id, "output": []})

    def text(self, piece: str) -> None:
        """A piece of the answer's text."""
        if self.open_kind != "message":
            self._start({"type": "message", "role": "assistant", "content": []})
            self._emit("response.content_part.added", content_index=0, part=_part(""))
        self._text += piece
        self._emit("response.output_text.delta", content_index=0, delta=piece)

    def thought(self, piece: str) -> None:
        if self.open_kind != "reasoning":
            self._start({"type": "reasoning", "summary": []})
        self._text += piece

    def sign(self, signature: str) -> None:
        """The seal of the thought that is open."""
        if self._open is not None:
            self._open["encrypted_content"] = signature

    def call(self, call_id: str, name: str) -> None:
        """A call begins."""
        self._start({"type": "function_call", "call_id": call_id, "name": name, "arguments": ""})

    def arguments(self, piece: str) -> None:
        self._text += piece
        self._emit("response.function_call_arguments.delta", delta=piece)

    def close(self) -> None:
        """End the open item."""
        item, self._open = self._open, None
        if item is None:
            return
        if item["type"] == "message":
            item["content"] = [_part(self._text)]
            self._emit("response.output_text.done", content_index=0, text=self._text)
            self._emit("response.content_part.done", content_index=0, part=_part(self._text))
        elif item["type"] == "function_call":
            item["arguments"] = self._text
            self._emit("response.function_call_arguments.done", arguments=self._text)
        else:
            item["content"] = [{"type": "reasoning_text", "text": self._text}]
        self._emit("response.output_item.done", item=item)
        self._items.append(item)
        self._text = ""

    def end(self, *, is_cut: bool, read: int, cached: int, written: int, thought: int) -> None:
        """The answer is complete; the numbers are tokens."""
        self.close()
        kind = "incomplete" if is_cut else "completed"
        response = {
            "id": self._id,
            "status": kind,
            "output": self._items,
            "previous_response_id": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": thought},
            },
        }
        self._emit(f"response.{kind}", response=response)

    def _start(self, item: dict[str, Any]) -> None:
        self.close()
        self._open = {"id": f"item_{len(self._items)}", **item}
        self._emit("response.output_item.added", item=dict(self._open))

    def _emit(self, kind: str, **fields: Any) -> None:
        event: Event = {"type": kind, "sequence_number": self._numbers, **fields}
        if "response" not in fields:
            event |= {"output_index": len(self._items), "item_id": f"item_{len(self._items)}"}
        self._numbers += 1
        self._events.append(event)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


class ChatHistory(Context):
    """The client keeps the conversation and sends all of it in every turn."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._messages += [_message(item) for item in new]
        system = [{"role": "system", "content": head["instructions"]}] if head.get("instructions") else []
        return {**_chat_head(head), "messages": [*system, *self._messages]}

    def learn(self, exchange: TurnExchange) -> None:
        answer: dict[str, Any] = {"role": "assistant", "content": None}
        for item in exchange.answer:
            if item["type"] == "message":
                answer["content"] = (answer["content"] or "") + text_of(item["content"])
            elif item["type"] == "reasoning":
                answer["reasoning_content"] = text_of(item.get("content"))
            else:
                answer.setdefault("tool_calls", []).append(_call(item))
        self._messages.append(answer)


def _chat_head(head: Fields) -> Fields:
    """The fields beside the messages. Those that this API does not have are left out."""
    fields: Fields = {"model": head["model"], "stream_options": {"include_usage": True}}
    if "max_output_tokens" in head:
        fields["max_completion_tokens"] = head["max_output_tokens"]
    if head.get("tools"):
        fields["tools"] = [_chat_tool(tool) for tool in head["tools"]]
    return fields | {name: head[name] for name in ("temperature", "top_p", "tool_choice") if name in head}


def _chat_tool(tool: Item) -> Fields:
    if tool.get("type") != "function":
        raise TurnFailed(f"the bench sends no tool of the type {tool.get('type')} by Chat Completions")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if name in tool}}


def _call(item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _message(item: Item) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item["role"], "content": text_of(item["content"])}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item["output"])}
    if kind == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": [_call(item)]}
    raise TurnFailed(f"the Chat Completions API has no item of the type {kind}")


class ChatReader(AnswerReader):
    """Reads the chunks of a Chat Completions server."""

    def __init__(self) -> None:
        super().__init__()
        self._has_begun = False
        self._calls = 0
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}

    def see(self, event: Event) -> None:
        if "error" in event:
            raise refusal(event)
        if not self._has_begun:
            self._has_begun = True
            self.begin(event["id"])
        for choice in event.get("choices") or ():
            self._delta(choice.get("delta") or {})
            self._reason = choice.get("finish_reason") or self._reason
        self._usage = event.get("usage") or self._usage

    def finish(self) -> None:
        if self._reason is None:
            return
        details = self._usage.get("prompt_tokens_details") or {}
        written = self._usage.get("completion_tokens_details") or {}
        self.end(
            is_cut=self._reason == "length",
            read=self._usage.get("prompt_tokens") or 0,
            cached=details.get("cached_tokens") or 0,
            written=self._usage.get("completion_tokens") or 0,
            thought=written.get("reasoning_tokens") or 0,
        )

    def _delta(self, delta: dict[str, Any]) -> None:
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self.thought(thought)
        if text := delta.get("content"):
            self.text(text)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if call["index"] == self._calls:
                self._calls += 1
                self.call(call["id"], function["name"])
            if function.get("arguments"):
                self.arguments(function["arguments"])


class MessagesHistory(Context):
    """The client keeps the conversation and sends all of it in every turn."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._add(new)
        *before, last = self._messages
        *blocks, block = last["content"]
        marked = {**last, "content": [*blocks, {**block, **_BREAKPOINT}]}
        return {**_messages_head(head), "messages": [*before, marked]}

    def learn(self, exchange: TurnExchange) -> None:
        self._add(exchange.answer)

    def _add(self, items: list[Item]) -> None:
        for item in items:
            role, block = _block(item)
            if not self._messages or self._messages[-1]["role"] != role:
                self._messages.append({"role": role, "content": []})
            self._messages[-1]["content"].append(block)


def _messages_head(head: Fields) -> Fields:
    """The fields beside the messages. Those that this API does not have are left out."""
    fields: Fields = {"model": head["model"], "max_tokens": head.get("max_output_tokens", _MAX_TOKENS)}
    if head.get("instructions"):
        fields["system"] = [{"type": "text", "text": head["instructions"], **_BREAKPOINT}]
    if head.get("tools"):
        fields["tools"] = [_messages_tool(tool) for tool in head["tools"]]
    if isinstance(choice := head.get("tool_choice"), str):
        fields["tool_choice"] = _CHOICES[choice]
    if "reasoning.encrypted_content" in head.get("include", ()):
        fields["thinking"] = {"type": "adaptive"}
    return fields | {name: head[name] for name in ("temperature", "top_p") if name in head}


def _messages_tool(tool: Item) -> Fields:
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


class MessagesReader(AnswerReader):
    """Reads the events of a Messages server."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, Any] = {}

    def see(self, event: Event) -> None:
        kind = event.get("type")
        if kind == "error":
            raise refusal(event)
        if kind == "message_start":
            self._read = dict(event["message"]["usage"])
            self.begin(event["message"]["id"])
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            self.call(event["content_block"]["id"], event["content_block"]["name"])
        elif kind == "content_block_delta":
            self._delta(event["delta"])
        elif kind == "content_block_stop":
            self.close()
        elif kind == "message_delta":
            self._end(event)

    def _delta(self, delta: dict[str, Any]) -> None:
        kind = delta["type"]
        if kind == "text_delta":
            self.text(delta["text"])
        elif kind == "input_json_delta":
            self.arguments(delta["partial_json"])
        elif kind == "thinking_delta":
            self.thought(delta["thinking"])
        elif kind == "signature_delta":
            self.thought("")
            self.sign(delta["signature"])

    def _end(self, event: Event) -> None:
        usage = self._read | {name: count for name, count in event["usage"].items() if count is not None}
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        details = usage.get("output_tokens_details") or {}
        self.end(
            is_cut=event["delta"]["stop_reason"] in _CUTS,
            read=usage["input_tokens"] + cached + written,
            cached=cached,
            written=usage["output_tokens"],
            thought=details.get("thinking_tokens") or 0,
        )
