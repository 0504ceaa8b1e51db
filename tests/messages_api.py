"""A client of the Messages API that checks every answer."""

from typing import Any

from tests import messages_wire, wire
from tests.harness import Reached, Running
from tests.messages_wire import Json


class Refused(Exception):
    """An error that the API has answered with."""

    def __init__(self, status: int, body: Json, headers: Any) -> None:
        super().__init__(body)
        self.status = status
        self.error: Json = body["error"]
        self.kind: str = body["error"]["type"]
        self.message: str = body["error"]["message"]
        self.headers = headers


class MessagesApi:
    """Calls the endpoints of a server. ``create`` and ``stream`` add what every request needs."""

    def __init__(self, server: Reached, key: str = "test-key", *, model: str | None = None) -> None:
        """``model``: needed for a server of another process."""
        self.server = server
        self.headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        if model is None:
            assert isinstance(server, Running)
            model = server.server.catalog.find(None).name
        self.model = model
        self.received: Any = None
        """The headers of the last answer."""

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> str:
        options.setdefault("headers", self.headers)
        if body is not None:
            options["json"] = body
        async with self.server.http.request(method, f"{self.server.url}{path}", **options) as answer:
            text = await answer.text()
            self.received = answer.headers
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
            if answer.status == 200:
                return text
            refusal = messages_wire.check_error(wire.parse(text))
            assert refusal["request_id"] == answer.headers["request-id"]
            raise Refused(answer.status, refusal, answer.headers)

    def body(self, *messages: Json | str, **fields: Any) -> Json:
        sent = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
        return {"model": self.model, "max_tokens": 1000, "messages": sent, **fields}

    async def create(self, *messages: Json | str, **fields: Any) -> Json:
        text = await self.call("POST", "/messages", self.body(*messages, **fields))
        return messages_wire.check_message(wire.parse(text))

    async def stream(self, *messages: Json | str, **fields: Any) -> list[Json]:
        text = await self.call("POST", "/messages", self.body(*messages, stream=True, **fields))
        return messages_wire.read_events(text)

    async def count(self, *messages: Json | str, **fields: Any) -> int:
        body = self.body(*messages, **fields)
        del body["max_tokens"]
        text = await self.call("POST", "/messages/count_tokens", body)
        return messages_wire.check_count(wire.parse(text))["input_tokens"]

    async def refused(self, *messages: Json | str, **fields: Any) -> Refused:
        """The error of a request that is refused, whether it streams or not."""
        refusals = []
        for streams in (False, True):
            try:
                await self.call("POST", "/messages", self.body(*messages, stream=streams, **fields))
            except Refused as refusal:
                refusals.append(refusal)
        first, second = refusals
        assert (first.status, first.kind, first.message) == (second.status, second.kind, second.message)
        return first
