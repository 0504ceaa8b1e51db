"""Validates every chunk and body that the Chat Completions endpoint sends.

As `tests.wire` does for the Responses API: documents are validated strictly with the openai package's own
types, without keys that these do not have, but for the extensions listed here. `Order` checks the sequence of
the chunks of one stream. Every check raises AssertionError with a message of its own.
"""

import json
from collections.abc import Iterator
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.wire import parse, validate

Json = dict[str, Any]
DONE = "[DONE]"
_EXTENSIONS = ("reasoning_content", "annotations")
"""Keys of a message or of a delta that other servers have too, and the package does not."""
_COMPLETION_KEYS = {
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    "service_tier",
    "system_fingerprint",
}
_CHUNK_KEYS = _COMPLETION_KEYS - {"usage"}


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise AssertionError(complaint)


def check_completion(body: Json | str | bytes) -> Json:
    """Check the body of a completion that is not streamed."""
    completion = body if isinstance(body, dict) else parse(body if isinstance(body, str) else body.decode())
    known = json.loads(json.dumps(completion))
    for choice in known["choices"]:
        message = choice["message"]
        _require(isinstance(message.pop("reasoning_content", "text"), str), "reasoning_content is no text")
        _require(
            {"content", "refusal", "annotations", "role"} <= message.keys(), f"message has {list(message)}"
        )
        _require("logprobs" in choice, "a choice lacks logprobs")
        has_calls = "tool_calls" in message or "function_call" in message
        texts = (message["content"], message["refusal"])
        _require(has_calls or texts != (None, None), "a message without anything")
        _check_reason(choice["finish_reason"], has_calls=has_calls)
    validate(ChatCompletion, known)
    _require(completion.keys() >= _COMPLETION_KEYS, f"completion lacks keys: {list(completion)}")
    indexes = [choice["index"] for choice in completion["choices"]]
    _require(indexes == list(range(len(indexes))), f"indexes of the choices: {indexes}")
    check_usage(completion["usage"])
    return completion


def check_usage(usage: Json) -> None:
    read, written = usage["prompt_tokens"], usage["completion_tokens"]
    _require(usage["total_tokens"] == read + written, f"total_tokens of {usage}")
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    _require(0 <= cached <= read, f"{cached} cached of {read} tokens")
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    _require(0 <= thought <= written, f"{thought} reasoning of {written} tokens")


def _check_reason(reason: str, *, has_calls: bool) -> None:
    _require(reason not in ("tool_calls", "function_call") or has_calls, f"{reason} without a call")
    _require(reason != "stop" or not has_calls, "stop with a call")


def check_chunk(data: str | bytes) -> Json:
    """Check one chunk and return it parsed."""
    chunk = parse(data if isinstance(data, str) else data.decode())
    known = json.loads(json.dumps(chunk))
    _require(isinstance(known.pop("obfuscation", ""), str), "obfuscation is no text")
    for choice in known["choices"]:
        delta = choice["delta"]
        for key in _EXTENSIONS:
            delta.pop(key, None)
        for call in delta.get("tool_calls") or ():
            # The package's type of a chunk has functions only.
            custom = call.pop("custom", None)
            if custom is not None:
                _require(custom.keys() <= {"name", "input"}, f"a custom call {custom}")
                _require(call.pop("type", "custom") == "custom", f"the type of a custom call: {call}")
        _require(
            {"index", "delta", "logprobs", "finish_reason"} == choice.keys(), f"choice has {list(choice)}"
        )
    validate(ChatCompletionChunk, known)
    _require(chunk.keys() >= _CHUNK_KEYS, f"chunk lacks keys: {list(chunk)}")
    return chunk


class Order:
    """Checks the sequence of the blocks of one stream."""

    def __init__(self) -> None:
        self._head: tuple[Any, ...] | None = None
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._calls: dict[int, list[Json]] = {}
        self._has_usage: bool | None = None
        self._is_over = False

    def see(self, data: str) -> None:
        """Check the next block's data."""
        _require(not self._is_over, f"{data[:100]} after the end")
        if data == DONE:
            _require(bool(self._begun) and self._begun == self._ended, f"[DONE] before {self._begun} ended")
            _require(self._has_usage is not True, "[DONE] before the usage")
            self._is_over = True
            return
        if data.startswith('{"error":'):
            error = parse(data)["error"]
            _require(set(error) == {"message", "type", "param", "code"}, f"error has {list(error)}")
            _require(bool(error["message"]), "an error without a message")
            self._is_over = True
            return
        self._see_chunk(check_chunk(data))

    def finished(self) -> None:
        _require(self._is_over, "the stream ended before [DONE]")

    def _see_chunk(self, chunk: Json) -> None:
        head = tuple(chunk[key] for key in ("id", "object", "created", "model", "system_fingerprint"))
        _require(self._head in (None, head), f"chunks of two completions: {self._head} and {head}")
        _require(chunk["id"].startswith("chatcmpl-"), f"id {chunk['id']}")
        self._head = head
        if not chunk["choices"]:
            _require(self._has_usage is True, "a chunk without choices that is no usage")
            _require(bool(self._begun) and self._begun == self._ended, "usage before the end")
            check_usage(chunk["usage"])
            self._has_usage = False  # nothing but [DONE] may follow
            return
        _require(self._has_usage in (None, "usage" in chunk), "usage is in some chunks only")
        self._has_usage = "usage" in chunk
        _require(chunk.get("usage") is None, "usage in a chunk with choices")
        for choice in chunk["choices"]:
            self._see_choice(choice)

    def _see_choice(self, choice: Json) -> None:
        index, delta, reason = choice["index"], choice["delta"], choice["finish_reason"]
        _require(index not in self._ended, f"choice {index} goes on after its end")
        _require((index in self._begun) != ("role" in delta), f"role of choice {index}: {delta}")
        self._begun.add(index)
        calls = self._calls.setdefault(index, [])
        for call in delta.get("tool_calls") or ():
            self._see_call(calls, call)
        if "function_call" in delta:
            self._see_function(calls, delta["function_call"])
        if reason is not None:
            _check_reason(reason, has_calls=bool(calls))
            _require(not delta, f"the last chunk has a delta: {delta}")
            self._ended.add(index)

    def _see_call(self, calls: list[Json], call: Json) -> None:
        body = call.get("function") or call.get("custom") or {}
        if call["index"] == len(calls):
            _require(bool(call.get("id")) and bool(call.get("type")), f"a call begins without an id: {call}")
            _require(bool(body.get("name")), f"a call begins without a name: {call}")
            _require(
                call["id"] not in [other["id"] for other in calls], f"two calls have the id {call['id']}"
            )
            _require(len(call["id"]) <= 40, f"a long id: {call['id']}")
            calls.append(call)
            return
        _require(call["index"] == len(calls) - 1, f"a piece of call {call['index']} of {len(calls)}")
        _require(call.keys() <= {"index", "function", "custom"}, f"a later piece of a call: {call}")
        _require("name" not in body, f"the name of a call comes twice: {call}")

    def _see_function(self, calls: list[Json], piece: Json) -> None:
        if not calls:
            _require(bool(piece.get("name")), f"a function call begins without a name: {piece}")
            calls.append({"id": ""})
        else:
            _require("name" not in piece, f"the name of a function call comes twice: {piece}")


def blocks(text: str) -> Iterator[str]:
    """The data of SSE blocks; comments are left out."""
    _require(text.endswith("\n\n") or not text, f"half of a block: {text[-200:]}")
    for block in text.split("\n\n"):
        if block and block != ": keepalive":
            is_data = block.startswith("data: ") and "\n" not in block
            _require(is_data, f"no block of this API: {block[:200]}")
            yield block.removeprefix("data: ")


def read_blocks(text: str) -> list[str]:
    """The data of the blocks of a stream, checked, with their order."""
    order, found = Order(), list(blocks(text))
    for data in found:
        order.see(data)
    order.finished()
    return found


def read_stream(text: str) -> list[Json]:
    """The chunks of a whole stream, checked, or its error; without [DONE]."""
    return [json.loads(data) for data in read_blocks(text) if data != DONE]
