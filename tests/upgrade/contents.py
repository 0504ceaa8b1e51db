"""What clients leave in a store, and how to find all of it there again.

``write`` makes one of everything that a server keeps: chains with tool calls, forks, a hidden ancestor, a
deleted response, a conversation, a background response, a sealed compaction. It returns what the server said
about each as JSON. ``check`` compares a server, after an upgrade or on a restored backup, with that. Both
make the same follow-up turns; the engine's answers contain a digest of the context that it read, so equal
answers mean equal histories.
"""

import json
from typing import Any

import aiohttp

Json = dict[str, Any]

ENGINE = ("--engine", "simulated:tokens_per_s=0,output_tokens=6,tool_calls=1,digest=true")
FOREVER = ("--retention-days", "0")
_TOOL = {
    "type": "function",
    "name": "lookup",
    "description": "Looks a word up",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
TOOL_LOOP_SETTINGS = {"tools": [_TOOL], "instructions": "Be brief."}
_PROBE = "What did we speak about?"


class Client:
    """Requests to one server."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str = "") -> None:
        self._http = http
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def post(self, path: str, **body: Any) -> Json:
        async with self._http.post(f"{self._url}{path}", json=body, headers=self._headers) as answer:
            found: Json = await answer.json()
            assert answer.status == 200, found
            return found

    async def create(self, **body: Any) -> Json:
        response = await self.post("/responses", **body)
        assert response["status"] in ("completed", "queued"), response
        return response

    async def get(self, path: str) -> tuple[int, Json]:
        async with self._http.get(f"{self._url}{path}", headers=self._headers) as answer:
            return answer.status, await answer.json()

    async def delete(self, path: str) -> None:
        async with self._http.delete(f"{self._url}{path}", headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()

    async def items(self, path: str) -> list[Json]:
        """The items of a list, oldest first."""
        status, page = await self.get(f"{path}?order=asc&limit=100")
        assert status == 200, page
        assert not page["has_more"]
        items: list[Json] = page["data"]
        return items

    async def events(self, response_id: str) -> list[Json]:
        """All events of a background response."""
        url = f"{self._url}/responses/{response_id}?stream=true"
        async with self._http.get(url, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            lines = (await answer.read()).splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    def socket(self) -> Any:
        return self._http.ws_connect(f"{self._url}/responses", headers=self._headers)


async def socket_turn(ws: aiohttp.ClientWebSocketResponse, **fields: Any) -> Json:
    """Make a turn over a socket; return its response."""
    await ws.send_json({"type": "response.create", **fields})
    while True:
        event = await ws.receive_json(timeout=300)
        assert event["type"] not in ("error", "response.failed"), event
        if event["type"] == "response.completed":
            response: Json = event["response"]
            return response


async def tool_loop(ws: aiohttp.ClientWebSocketResponse, *, store: bool) -> list[Json]:
    """Three turns over a socket: a call, its output, and a message. Returns their responses."""
    settings = {"store": store, **TOOL_LOOP_SETTINGS}
    first = await socket_turn(ws, input="Look up: gimbal \u2013 \U0001f9ed", **settings)
    call = first["output"][-1]
    assert call["type"] == "function_call", first
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "a pivoted support"}
    second = await socket_turn(ws, input=[output], previous_response_id=first["id"], **settings)
    third = await socket_turn(ws, input="And a slip ring?", previous_response_id=second["id"], **settings)
    return [first, second, third]


async def write(client: Client) -> Json:
    """Fill a store through its server; return what ``check`` needs."""
    async with client.socket() as ws:
        chain = await tool_loop(ws, store=True)
        hidden = await socket_turn(ws, input="Not stored by itself", store=False)
        heir = await socket_turn(ws, input="But for me", store=True, previous_response_id=hidden["id"])
    fork = await client.create(input="Instead", previous_response_id=chain[1]["id"], instructions="Be long.")
    doomed = await client.create(input="To be deleted")
    child = await client.create(input="It stays usable", previous_response_id=doomed["id"])
    await client.delete(f"/responses/{doomed['id']}")
    talk = await client.post("/conversations", metadata={"topic": "rings"}, items=[_message("Hello")])
    spoken = await client.create(input="In a conversation", conversation=talk["id"])
    run = await client.create(input="In the background", background=True)
    events = await client.events(run["id"])
    compacted = await client.post("/responses/compact", model=fork["model"], input=_PROBE)
    stored = [*chain, heir, fork, child, spoken, events[-1]["response"]]
    tips = [chain[-1]["id"], chain[1]["id"], heir["id"], fork["id"], child["id"], run["id"]]
    return {
        "stored": stored,
        "inputs": {each["id"]: await client.items(f"/responses/{each['id']}/input_items") for each in stored},
        "missing": [hidden["id"], doomed["id"]],
        "conversation": talk,
        "conversation_items": await client.items(f"/conversations/{talk['id']}/items"),
        "events": {run["id"]: events},
        "window": compacted["output"],
        "answers": {tip: await _probe(client, previous_response_id=tip, tools=[_TOOL]) for tip in tips},
        "window_answer": await _probe_window(client, compacted["output"]),
    }


async def check(client: Client, left: Json, *, counts: bool = True) -> None:
    """Assert that a server has everything that ``write`` returned, and continues it from the same history.
    ``counts``: which has as many tokens. Another version may render token ids otherwise."""
    for response in left["stored"]:
        status, found = await client.get(f"/responses/{response['id']}")
        assert status == 200, found
        _compare(found, response)
        items = await client.items(f"/responses/{response['id']}/input_items")
        assert items == left["inputs"][response["id"]]
    for missing in left["missing"]:
        assert (await client.get(f"/responses/{missing}"))[0] == 404
    talk = left["conversation"]
    assert (await client.get(f"/conversations/{talk['id']}"))[1] == talk
    items = await client.items(f"/conversations/{talk['id']}/items")
    assert items[: len(left["conversation_items"])] == left["conversation_items"]
    for run, events in left["events"].items():
        found_events = await client.events(run)
        assert len(found_events) == len(events)
        for found, event in zip(found_events, events, strict=True):
            response, before = found.pop("response", {}), event.get("response", {})
            _compare(response, before)
            assert found == {name: value for name, value in event.items() if name != "response"}
    for tip, answer in left["answers"].items():
        _compare_probes(await _probe(client, previous_response_id=tip, tools=[_TOOL]), answer, counts=counts)
    _compare_probes(await _probe_window(client, left["window"]), left["window_answer"], counts=counts)
    await client.create(input="Still here?", conversation=talk["id"])
    assert len(await client.items(f"/conversations/{talk['id']}/items")) == len(items) + 2


async def _probe(client: Client, **fields: Any) -> list[Any]:
    """Ask a question that is not stored; return what shows the context that the engine has read."""
    response = await client.create(input=_PROBE, store=False, tool_choice="none", **fields)
    return [response["output"][-1]["content"][0]["text"], response["usage"]["input_tokens"]]


async def _probe_window(client: Client, window: list[Json]) -> list[Any]:
    """The same for a compacted context that the client has kept."""
    response = await client.create(input=[*window, _message(_PROBE)], store=False)
    return [response["output"][-1]["content"][0]["text"], response["usage"]["input_tokens"]]


def _compare_probes(found: list[Any], before: list[Any], *, counts: bool) -> None:
    compared = slice(None) if counts else slice(1)
    assert found[compared] == before[compared], (found, before)


def _compare(found: Json, before: Json) -> None:
    """Responses are equal, except for fields that one of two releases does not know and that say nothing."""
    for name in found.keys() | before.keys():
        assert found.get(name) == before.get(name), (name, found, before)


def _message(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}
