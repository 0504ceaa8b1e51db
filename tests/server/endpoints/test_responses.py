"""``/v1/responses/{response_id}``: retrieve, list input, delete."""

import asyncio
from typing import Any

import pytest

from slipring.core.generation import Text, Thought
from tests.api import Api
from tests.harness import PuppetEngine, serve


async def test_a_stored_response_can_be_retrieved() -> None:
    async with serve() as server:
        _, made = await server.post(input="hello", instructions="be brief", metadata={"a": "b"})
        assert await Api(server).call("GET", f"/responses/{made['id']}") == (200, made)


async def test_a_response_stored_by_a_socket_can_be_retrieved() -> None:
    async with serve() as server, server.connect() as socket:
        made = await socket.response(input="hello", store=True)
        assert await Api(server).call("GET", f"/responses/{made['id']}") == (200, made)


async def test_an_unstored_response_is_not_found() -> None:
    async with serve() as server, server.connect() as socket:
        made = await socket.response(input="hello", store=False)
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            status, error = await Api(server).call(method, f"/responses/{made['id']}{path}")
            assert (status, error["error"]["code"]) == (404, "not_found")


async def test_deleting_a_response_keeps_its_continuations() -> None:
    async with serve() as server:
        api = Api(server)
        _, first = await server.post(input="one")
        _, second = await server.post(input="two", previous_response_id=first["id"])
        assert (await api.call("DELETE", f"/responses/{first['id']}"))[0] == 200
        assert (await api.call("GET", f"/responses/{first['id']}"))[0] == 404
        assert (await api.call("DELETE", f"/responses/{first['id']}"))[0] == 404
        status, error = await server.post(input="x", previous_response_id=first["id"])
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")
        status, third = await server.post(input="three", previous_response_id=second["id"])
        assert status == 200
        assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_the_input_of_a_response_is_listed() -> None:
    async with serve() as server:
        api = Api(server)
        _, first = await server.post(input=[{"role": "user", "content": "one"}])
        _, second = await server.post(input="two", previous_response_id=first["id"])
        path = f"/responses/{second['id']}/input_items"
        status, page = await api.call("GET", path, params={"order": "asc"})
        assert status == 200
        assert [item["content"][0]["text"] for item in page["data"]][::2] == ["one", "two"]
        assert page["data"][1] == first["output"][0]
        status, newest = await api.call("GET", path, params={"limit": "1"})
        assert (newest["data"], newest["has_more"]) == ([page["data"][2]], True)
        status, rest = await api.call("GET", path, params={"after": newest["last_id"]})
        assert (rest["data"], rest["has_more"]) == (page["data"][1::-1], False)


async def test_a_listed_item_can_be_referred_to() -> None:
    async with serve() as server:
        api = Api(server)
        _, first = await server.post(input="remember this")
        _, page = await api.call("GET", f"/responses/{first['id']}/input_items")
        references = [
            {"type": "item_reference", "id": page["first_id"]},
            *({"id": i["id"]} for i in first["output"]),
        ]
        status, second = await server.post(input=references)
        assert status == 200, second
        _, listed = await api.call("GET", f"/responses/{second['id']}/input_items", params={"order": "asc"})
        assert [item["id"] for item in listed["data"]] == [page["first_id"], first["output"][0]["id"]]


async def test_an_item_can_be_referred_to_by_the_id_that_its_client_chose() -> None:
    async with serve() as server:
        api = Api(server)
        mine = {"type": "message", "id": "msg_mine", "role": "user", "content": "remember"}
        _, first = await server.post(input=[mine])
        _, second = await server.post(input="more", previous_response_id=first["id"])

        async def listed(response_id: str) -> list[dict[str, Any]]:
            _, page = await api.call("GET", f"/responses/{response_id}/input_items", params={"order": "asc"})
            return list(page["data"])

        items = await listed(second["id"])
        references = [{"type": "item_reference", "id": item["id"]} for item in items]
        assert references[0]["id"] == "msg_mine"
        _, third = await server.post(input=references)
        assert await listed(third["id"]) == items
        # As long as one stored response has the item.
        for deleted, refers in ((first, True), (third, False)):
            assert (await api.call("DELETE", f"/responses/{deleted['id']}"))[0] == 200
            status, answer = await server.post(input=references[:1], store=False)
            assert (status == 200) is refers
        assert (status, answer["error"]["param"]) == (400, "input[0].id")


async def test_an_item_sent_twice_is_listed_twice_across_pages() -> None:
    async with serve() as server:
        api = Api(server)
        again = {"type": "message", "id": "msg_mine", "role": "user", "content": "again"}
        other = {"type": "message", "role": "user", "content": "other"}
        _, first = await server.post(input=[again, other])
        _, second = await server.post(input=[again, again], previous_response_id=first["id"])
        path = f"/responses/{second['id']}/input_items"
        seen: list[str] = []
        for _ in range(5):
            query = {"order": "asc", "limit": "1", **({"after": seen[-1]} if seen else {})}
            _, page = await api.call("GET", path, params=query)
            seen += [item["id"] for item in page["data"]]
        assert (len(set(seen)), page["has_more"]) == (5, False)
        status, error = await api.call("GET", path, params={"after": "msg_unknown"})
        assert (status, error["error"]["param"]) == (400, "after")
        status, third = await server.post(input=[{"id": seen[-1]}])
        assert status == 200
        _, page = await api.call("GET", f"/responses/{third['id']}/input_items")
        assert page["data"][0]["content"] == [{"type": "input_text", "text": "again"}]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"include": "nonsense"}, "include[0]"),
        ({"starting_after": "1"}, "starting_after"),
        ({"stream": "yes"}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
        ({"stream": "true", "starting_after": "-1"}, "starting_after"),
    ],
)
async def test_an_invalid_query_is_refused(query: dict[str, str], param: str) -> None:
    async with serve() as server:
        _, made = await server.post(input="hello")
        status, error = await Api(server).call("GET", f"/responses/{made['id']}", params=query)
        assert (status, error["error"]["param"]) == (400, param)


async def test_known_includes_are_accepted() -> None:
    async with serve() as server:
        _, made = await server.post(input="hello")
        query: Any = [
            ("include", "reasoning.encrypted_content"),
            ("include[]", "message.output_text.logprobs"),
        ]
        status, _ = await Api(server).call("GET", f"/responses/{made['id']}", params=query)
        assert status == 200


async def test_encrypted_reasoning_can_be_requested_on_retrieval() -> None:
    """The create did not ask for it; another server can open it."""
    engine = PuppetEngine()
    async with serve(engine) as server:
        asking = asyncio.create_task(server.post(input="6*7"))
        performance = await engine.next()
        performance.emit(Thought("six sevens"), Text("42"))
        performance.finish()
        _, made = await asking
        path = f"/responses/{made['id']}"
        assert await Api(server).call("GET", path) == (200, made)
        _, read = await Api(server).call("GET", path, params={"include": "reasoning.encrypted_content"})
        thought, answer = read["output"]
        assert {**thought, "encrypted_content": None} == {**made["output"][0], "encrypted_content": None}
        assert answer == made["output"][1]
        replayed = {**thought, "content": None}
        asking = asyncio.create_task(server.post(input=[replayed, {"role": "user", "content": "again"}]))
        performance = await engine.next()
        assert b"six sevens" in next(performance.job.context()).raw
        performance.finish()
        assert (await asking)[0] == 200
