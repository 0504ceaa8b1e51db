"""The Chat Completions API as its clients use it: the whole conversation in every request, and its chunks."""

from typing import Any

from slipring.commands.bench.client.exchange import Event, Fields, TurnExchange, TurnFailed, refusal
from slipring.commands.bench.client.rebuilt_answer import RebuiltAnswer
from slipring.commands.bench.workloads.plan import Item, text_of


class ChatHistory:
    """The client keeps the conversation and sends all of it in every turn."""

    previous_response_id = None
    is_open = False

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def request(self, head: Fields, new: list[Item]) -> Fields:
        self._messages += [_message(item) for item in new]
        system = [{"role": "system", "content": head["instructions"]}] if head.get("instructions") else []
        return {**_head(head), "messages": [*system, *self._messages]}

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

    def fork(self) -> "ChatHistory":
        forked = ChatHistory()
        forked._messages = self._messages.copy()
        return forked


def _head(head: Fields) -> Fields:
    """The fields beside the messages. Those that this API does not have are left out."""
    fields: Fields = {"model": head["model"], "stream_options": {"include_usage": True}}
    if "max_output_tokens" in head:
        fields["max_completion_tokens"] = head["max_output_tokens"]
    if head.get("tools"):
        fields["tools"] = [_tool(tool) for tool in head["tools"]]
    return fields | {name: head[name] for name in ("temperature", "top_p", "tool_choice") if name in head}


def _tool(tool: Item) -> Fields:
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


class ChatReader:
    """Reads the chunks of one answer."""

    def __init__(self) -> None:
        self.answer = RebuiltAnswer()
        self._has_begun = False
        self._calls = 0
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}

    def see(self, chunk: Event) -> None:
        """Take the next chunk. Raises ``RefusedByServer`` for an error."""
        if "error" in chunk:
            raise refusal(chunk)
        if not self._has_begun:
            self._has_begun = True
            self.answer.begin(chunk["id"])
        for choice in chunk.get("choices") or ():
            self._delta(choice.get("delta") or {})
            self._reason = choice.get("finish_reason") or self._reason
        self._usage = chunk.get("usage") or self._usage

    def finish(self) -> None:
        """The stream has ended."""
        if self._reason is None:
            return
        details = self._usage.get("prompt_tokens_details") or {}
        written = self._usage.get("completion_tokens_details") or {}
        self.answer.end(
            is_cut=self._reason == "length",
            read=self._usage.get("prompt_tokens") or 0,
            cached=details.get("cached_tokens") or 0,
            written=self._usage.get("completion_tokens") or 0,
            thought=written.get("reasoning_tokens") or 0,
        )

    def _delta(self, delta: dict[str, Any]) -> None:
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self.answer.thought(thought)
        if text := delta.get("content"):
            self.answer.text(text)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if call["index"] == self._calls:
                self._calls += 1
                self.answer.call(call["id"], function["name"])
            if function.get("arguments"):
                self.answer.arguments(function["arguments"])
