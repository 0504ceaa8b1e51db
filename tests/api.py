"""A client for the HTTP endpoints besides create, which checks every answer."""

import asyncio
from typing import Any

from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList
from openai.types.responses import ResponseItemList

from tests import wire
from tests.harness import Running, read_sse


class Api:
    """Calls the HTTP endpoints of a server and checks every answer."""

    def __init__(self, server: Running, key: str = "test-key") -> None:
        self.server = server
        self._headers = {"Authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        url = f"{self.server.url}{path}"
        async with self.server.http.request(method, url, headers=self._headers, **options) as answer:
            body = await answer.json()
            if answer.status != 200:
                wire.check_http_error(body)
            else:
                check_answer(body, path)
            return answer.status, body

    async def begin(self, **fields: Any) -> dict[str, Any]:
        body = {"input": "hello", "background": True, **fields}
        status, response = await self.call("POST", "/responses", json=body)
        assert (status, response["status"], response["background"]) == (200, "queued", True), response
        return response

    async def read(self, response_id: str) -> dict[str, Any]:
        status, response = await self.call("GET", f"/responses/{response_id}")
        assert status == 200, response
        return response

    async def cancel(self, response_id: str) -> dict[str, Any]:
        status, response = await self.call("POST", f"/responses/{response_id}/cancel")
        assert status == 200, response
        return response

    async def ended(self, response_id: str) -> dict[str, Any]:
        """Wait until a response has ended; return it."""
        async with asyncio.timeout(300):
            while True:
                response = await self.read(response_id)
                if response["status"] not in ("queued", "in_progress"):
                    return response
                await asyncio.sleep(0.01)

    async def events(self, response_id: str, **query: Any) -> list[dict[str, Any]]:
        """Return the events of a run until its end. If they begin with the first, their order is checked."""
        text = await self.stream(response_id, **query)
        if "starting_after" not in query:
            return read_sse(text)
        return check_rest(text)

    async def stream(self, response_id: str, **query: Any) -> str:
        url = f"{self.server.url}/responses/{response_id}"
        params = {"stream": "true", **{key: str(value) for key, value in query.items()}}
        async with self.server.http.get(url, headers=self._headers, params=params) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.read()).decode()


def check_answer(body: Any, path: str) -> None:
    """Check the answer of an endpoint strictly against the SDK's types."""
    kind = body.get("object")
    if kind == "response" and "deleted" not in body:
        wire.check_response(body)
    elif kind == "conversation":
        wire.validate(Conversation, body)
    elif kind == "conversation.deleted":
        wire.validate(ConversationDeletedResource, body)
    elif kind == "list" and "/responses/" in path:
        wire.validate(ResponseItemList, body)
    elif kind == "list" and "/conversations/" in path:
        wire.validate(ConversationItemList, body)
    elif kind is None and "/items/" in path:
        page = {"object": "list", "data": [body], "first_id": body["id"], "last_id": body["id"]}
        wire.validate(ConversationItemList, {**page, "has_more": False})


def check_rest(text: str) -> list[dict[str, Any]]:
    """Check an SSE body that begins in the middle of a response: its types, and that no number is missing."""
    *blocks, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    lines = [block.split("\n") for block in blocks]
    events = [
        wire.check_sse_event(name.removeprefix("event: "), data.removeprefix("data: "))
        for name, data in lines
    ]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == [events[0]["sequence_number"] + place for place in range(len(events))]
    return events
