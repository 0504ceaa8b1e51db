"""A client of the Chat Completions endpoint, which checks every answer."""

from typing import Any

from tests import chat_wire, wire
from tests.harness import Reached

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "hello"}


class Chat:
    """Asks for completions and checks every answer."""

    def __init__(self, server: Reached, key: str = "test-key") -> None:
        self.server = server
        self.url = f"{server.url}/chat/completions"
        self.headers = {"Authorization": f"Bearer {key}"}

    async def post(self, *messages: Json, **fields: Any) -> tuple[int, Json]:
        """Ask without streaming; returns the status and the checked body."""
        body = {"messages": messages or (USER,), **fields}
        async with self.server.http.post(self.url, json=body, headers=self.headers) as answer:
            content: Json = await answer.json()
            if answer.status == 200:
                chat_wire.check_completion(content)
            else:
                wire.check_http_error(content)
            return answer.status, content

    async def complete(self, *messages: Json, **fields: Any) -> Json:
        status, body = await self.post(*messages, **fields)
        assert status == 200, body
        return body

    async def message(self, *messages: Json, **fields: Any) -> Json:
        """The message of the first choice."""
        found: Json = (await self.complete(*messages, **fields))["choices"][0]["message"]
        return found

    async def error(self, *messages: Json, **fields: Any) -> tuple[int, Json]:
        """The status and the error of a request that is refused."""
        status, body = await self.post(*messages, **fields)
        assert status >= 400, body
        return status, body["error"]

    async def stream(self, *messages: Json, **fields: Any) -> list[Json]:
        """The chunks of a stream, checked; without [DONE]."""
        body = {"messages": messages or (USER,), "stream": True, **fields}
        async with self.server.http.post(self.url, json=body, headers=self.headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            return chat_wire.read_stream((await answer.read()).decode())


def joined(chunks: list[Json], index: int = 0) -> Json:
    """The message of a choice, as its chunks make it up, with ``finish_reason``."""
    message: Json = {"role": None, "content": "", "reasoning_content": "", "refusal": "", "tool_calls": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta = choice["delta"]
        message["role"] = message["role"] or delta.get("role")
        for name in ("content", "reasoning_content", "refusal"):
            message[name] += delta.get(name) or ""
        for piece in delta.get("tool_calls", ()):
            _add_call(message["tool_calls"], piece)
        if "function_call" in delta:
            called = message.setdefault("function_call", {"name": "", "arguments": ""})
            for name, text in delta["function_call"].items():
                called[name] += text
        message["finish_reason"] = choice["finish_reason"]
    return message


def _add_call(calls: list[Json], piece: Json) -> None:
    if "id" in piece:
        calls.append({key: piece[key] for key in piece if key != "index"})
        return
    kind = "function" if "function" in piece else "custom"
    for name, text in piece[kind].items():
        calls[piece["index"]][kind][name] += text
