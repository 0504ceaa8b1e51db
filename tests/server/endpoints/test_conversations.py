"""Conversations: their items, and responses that read and extend them."""

import asyncio
import random
from typing import Any

import openai
import pytest

from tests.api import Api
from tests.harness import PuppetEngine, Running, serve


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def texts(page: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"]]


async def created(api: Api, *texts: str, **fields: Any) -> str:
    body = {"items": [message(text) for text in texts], **fields}
    status, conversation = await api.call("POST", "/conversations", json=body)
    assert status == 200, conversation
    return str(conversation["id"])


async def listed(api: Api, conversation_id: str, **query: Any) -> dict[str, Any]:
    params = {key: str(value) for key, value in query.items()}
    status, page = await api.call("GET", f"/conversations/{conversation_id}/items", params=params)
    assert status == 200, page
    return dict(page)


async def test_a_conversation_is_created_updated_and_deleted() -> None:
    async with serve() as server:
        api = Api(server)
        status, made = await api.call("POST", "/conversations", json={"metadata": {"a": "b"}})
        assert (status, made["metadata"]) == (200, {"a": "b"})
        path = f"/conversations/{made['id']}"
        assert await api.call("GET", path) == (200, made)
        status, updated = await api.call("POST", path, json={"metadata": {"c": "d"}})
        assert (status, updated) == (200, {**made, "metadata": {"c": "d"}})
        assert await api.call("DELETE", path) == (
            200,
            {"id": made["id"], "object": "conversation.deleted", "deleted": True},
        )
        for method in ("GET", "DELETE"):
            assert (await api.call(method, path))[0] == 404
        assert (await api.call("POST", path, json={"metadata": {}}))[0] == 404


async def test_a_conversation_can_be_created_without_a_body() -> None:
    async with serve() as server:
        status, made = await Api(server).call("POST", "/conversations")
        assert (status, made["metadata"]) == (200, {})


async def test_items_are_listed_in_pages() -> None:
    async with serve() as server:
        api = Api(server)
        conversation = await created(api, "a", "b", "c", "d", "e")
        first = await listed(api, conversation, limit=2, order="asc")
        assert (texts(first), first["has_more"]) == (["a", "b"], True)
        second = await listed(api, conversation, limit=3, order="asc", after=first["last_id"])
        assert (texts(second), second["has_more"]) == (["c", "d", "e"], False)
        assert texts(await listed(api, conversation)) == ["e", "d", "c", "b", "a"]
        backwards = await listed(api, conversation, limit=2, after=second["first_id"])
        assert (texts(backwards), backwards["first_id"]) == (["b", "a"], first["last_id"])
        nothing = await listed(api, conversation, after=first["first_id"])
        assert (nothing["data"], nothing["first_id"], nothing["last_id"]) == ([], "", "")
        path = f"/conversations/{conversation}/items"
        status, error = await api.call("GET", path, params={"after": "msg_unknown"})
        assert (status, error["error"]["param"]) == (400, "after")
        assert "'msg_unknown'" in error["error"]["message"]


async def test_items_can_be_deleted_while_they_are_listed() -> None:
    async with serve() as server:
        texts = [str(number) for number in range(35)]
        conversation = await created(Api(server), *texts[:20])
        path = f"/conversations/{conversation}/items"
        more = [{"role": "user", "content": text} for text in texts[20:]]
        assert (await Api(server).call("POST", path, json={"items": more}))[0] == 200
        seen: list[str] = []
        async with openai.AsyncOpenAI(base_url=server.url, api_key="test-key") as client:
            async for item in client.conversations.items.list(conversation):
                assert item.type == "message"
                seen.append(item.model_dump()["content"][0]["text"])
                await client.conversations.items.delete(item.id, conversation_id=conversation)
        assert seen == texts[::-1]
        assert (await listed(Api(server), conversation))["data"] == []


async def test_items_are_added_read_and_deleted() -> None:
    async with serve() as server:
        api = Api(server)
        conversation = await created(api, "a")
        path = f"/conversations/{conversation}/items"
        status, added = await api.call(
            "POST", path, json={"items": [message("b"), message("c", "assistant")]}
        )
        assert (status, texts(added)) == (200, ["b", "c"])
        assert await api.call("GET", f"{path}/{added['first_id']}") == (200, added["data"][0])
        status, left = await api.call("DELETE", f"{path}/{added['first_id']}")
        assert (status, left["id"]) == (200, conversation)
        assert texts(await listed(api, conversation, order="asc")) == ["a", "c"]
        for method in ("GET", "DELETE"):
            status, error = await api.call(method, f"{path}/{added['first_id']}")
            assert (status, error["error"]["param"]) == (404, "item_id")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"type": "nonsense"}]}, "items[0].type"),
        ({"items": [message("a"), {"type": "message", "role": "user"}]}, "items[1].content"),
        ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
        ({"items": [message("x")] * 21}, "items"),
        ({"items": [{**message("x"), "id": "a" * 513}]}, "items[0].id"),
        ({"items": [{"type": "additional_tools", "tools": {}}]}, "items[0].tools"),
        ({"items": [{"type": "configuration_update", "text": {"format": {}}}]}, "items[0].text.format"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
    ],
)
async def test_invalid_items_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    async with serve() as server:
        status, error = await Api(server).call("POST", "/conversations", json=body)
        assert (status, error["error"]["param"].split("[")[0]) == (400, param.split("[")[0])
        assert error["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"limit": "0" * 8 + "1999"}, {"order": "up"}]
)
async def test_an_invalid_page_is_refused(query: dict[str, str]) -> None:
    async with serve() as server:
        api = Api(server)
        conversation = await created(api)
        status, error = await api.call("GET", f"/conversations/{conversation}/items", params=query)
        assert (status, error["error"]["param"]) == (400, next(iter(query)))


async def test_an_id_cannot_be_reused_for_another_item() -> None:
    async with serve() as server:
        api = Api(server)
        conversation = await created(api)
        path = f"/conversations/{conversation}/items"
        item = {**message("one"), "id": "msg_mine"}
        again = {"id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "one"}]}
        for items in ([item], [item], [again, again]):
            status, added = await api.call("POST", path, json={"items": items})
            assert (status, texts(added)) == (200, ["one"])
        for items in ([{**item, "content": "two"}], [message("new"), {**item, "content": "two"}]):
            status, error = await api.call("POST", path, json={"items": items})
            assert (status, error["error"]["param"]) == (400, f"items[{len(items) - 1}].id")
        twins = [{**item, "id": "msg_twin"}, {**item, "id": "msg_twin", "content": "two"}]
        for where in (path, "/conversations"):
            status, error = await api.call("POST", where, json={"items": twins})
            assert (status, error["error"]["param"]) == (400, "items[1].id")
        assert texts(await listed(api, conversation)) == ["one"]


async def test_the_longest_id_can_be_stored(postgres_url: str) -> None:
    """An index limits bytes, and the API limits characters."""
    drawn = random.Random(1)
    longest = "".join(chr(drawn.randrange(0x10000, 0x20000)) for _ in range(512))
    async with serve(store=postgres_url) as server:
        api = Api(server)
        conversation = await created(api)
        item = {**message("x"), "id": longest}
        status, error = await server.post(input=[{**item, "id": longest + "x"}], conversation=conversation)
        assert (status, error["error"]["param"]) == (400, "input[0].id")
        status, _ = await server.post(input=[item], conversation=conversation)
        assert status == 200
        added = await api.call("POST", f"/conversations/{conversation}/items", json={"items": [item]})
        assert added[0] == 200
        assert (await listed(api, conversation, order="asc"))["first_id"] == longest


async def test_a_response_adds_its_items_to_the_conversation() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api, "before")
        answer = asyncio.create_task(server.post(input="hello", conversation=conversation))
        performance = await engine.next()
        assert len(list(performance.job.context())) == 2
        performance.say("hi")
        performance.finish()
        status, response = await answer
        assert (status, response["conversation"]) == (200, {"id": conversation})
        assert texts(await listed(api, conversation, order="asc")) == ["before", "hello", "hi"]


async def test_the_next_response_continues_from_the_last() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api)
        first = asyncio.create_task(server.post(input="one", conversation={"id": conversation}))
        performance = await engine.next()
        performance.say("1")
        performance.finish()
        _, response = await first
        await api.call("POST", f"/conversations/{conversation}/items", json={"items": [message("aside")]})
        second = asyncio.create_task(server.post(input="two", conversation=conversation))
        job = (performance := await engine.next()).job
        assert job.parent is not None
        assert job.parent.id == response["id"]
        assert [b"aside" in item.raw for item in job.input] == [True, False]
        performance.finish()
        assert (await second)[0] == 200
        assert len((await listed(api, conversation))["data"]) == 4


@pytest.mark.parametrize("store", [True, False])
async def test_conversations_on_a_socket(store: bool) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        api = Api(server)
        conversation = await created(api)
        for number in range(3):
            await socket.create(input=f"q{number}", conversation=conversation, store=store)
            performance = await engine.next()
            assert len(list(performance.job.context())) == 2 * number + 1
            assert (performance.job.parent is not None) == (number > 0)
            performance.say(f"a{number}")
            performance.finish()
            assert (await socket.until("response.completed"))[-1]["response"]["conversation"]
        assert texts(await listed(api, conversation, order="asc")) == ["q0", "a0", "q1", "a1", "q2", "a2"]


async def test_deleted_items_are_not_passed_to_the_model() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api)
        first = asyncio.create_task(server.post(input="forget me", conversation=conversation))
        performance = await engine.next()
        performance.say("ok")
        performance.finish()
        await first
        page = await listed(api, conversation, order="asc")
        await api.call("DELETE", f"/conversations/{conversation}/items/{page['first_id']}")
        second = asyncio.create_task(server.post(input="next", conversation=conversation))
        performance = await engine.next()
        assert not any(b"forget me" in item.raw for item in performance.job.context())
        assert len(list(performance.job.context())) == 2
        performance.finish()
        await second


async def test_an_unstored_response_adds_its_items_too() -> None:
    async with serve() as server:
        api = Api(server)
        conversation = await created(api)
        for _ in range(2):
            status, _ = await server.post(input="x", conversation=conversation, store=False)
            assert status == 200
        assert len((await listed(api, conversation))["data"]) == 4


async def test_two_concurrent_responses_lose_no_items() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api)
        answers = []
        performances = []
        for text in ("a", "b"):
            answers.append(asyncio.create_task(server.post(input=text, conversation=conversation)))
            performances.append(await engine.next())
        for performance in performances:
            performance.say("!")
            performance.finish()
        await asyncio.gather(*answers)
        assert sorted(texts(await listed(api, conversation))) == ["!", "!", "a", "b"]
        third = asyncio.create_task(server.post(input="c", conversation=conversation))
        performance = await engine.next()
        assert len(list(performance.job.context())) == 5
        performance.finish()
        await third


async def test_an_unknown_conversation_is_not_found() -> None:
    async with serve() as server, server.connect() as socket:
        status, error = await server.post(input="x", conversation="conv_nobody")
        assert (status, error["error"]["param"]) == (404, "conversation")
        assert (await socket.error(input="x", conversation="conv_nobody"))["status"] == 404
        assert (await socket.response(input="x"))["status"] == "completed"


async def test_conversation_and_previous_response_exclude_each_other() -> None:
    async with serve() as server:
        status, error = await server.post(input="x", conversation="conv_1", previous_response_id="resp_1")
        assert (status, error["error"]["param"]) == (400, "previous_response_id")


async def run_turn(
    server: Running, engine: PuppetEngine, words: str, **fields: Any
) -> tuple[list[bytes], str]:
    """Run a turn over HTTP; returns the context that the engine got, and the id of the response."""
    answer = asyncio.create_task(server.post(**fields))
    performance = await engine.next()
    performance.say(words)
    performance.finish()
    status, response = await answer
    assert status == 200, response
    return [item.raw for item in performance.job.context()], response["id"]


async def test_repeated_client_ids_are_not_confused() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api)
        named = {"type": "message", "id": "msg_u", "role": "user"}
        for text in ("first", "second"):
            fields = {"input": [{**named, "content": text}], "conversation": conversation}
            _, tip = await run_turn(server, engine, f"to {text}", **fields)
        assert texts(await listed(api, conversation, order="asc")) == [
            *("first", "to first"),
            *("second", "to second"),
        ]
        await api.call("DELETE", f"/responses/{tip}")
        context, _ = await run_turn(server, engine, "x", input="third", conversation=conversation)
        assert [b"second" in raw for raw in context] == [False, False, True, True, False]


async def ids_of(api: Api, path: str) -> list[str]:
    status, page = await api.call("GET", path, params={"order": "asc"})
    assert status == 200, page
    return [item["id"] for item in page["data"]]


@pytest.mark.parametrize("store", [True, False])
async def test_a_client_may_name_its_items(store: bool) -> None:
    """A conversation, and the response that brought the items, list them by the same ids. A second item with
    the same id, and one whose id looks like ours, are not lost."""
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        api = Api(server)
        conversation = await created(api)
        for number in (1, 2):
            mine = [{**message(f"{each} {number}"), "id": each} for each in ("msg_mine", "msg_x0001")]
            await socket.create(input=mine, conversation=conversation, store=store)
            (await engine.next()).finish()
            last = (await socket.until("response.completed"))[-1]["response"]
            if store and number == 1:
                listing = await ids_of(api, f"/responses/{last['id']}/input_items")
                assert listing == await ids_of(api, f"/conversations/{conversation}/items")
        ids = await ids_of(api, f"/conversations/{conversation}/items")
        assert ids[:2] == ["msg_mine", "msg_x0001"]
        assert len(set(ids)) == len(ids) == 4
        path = f"/conversations/{conversation}/items"
        assert texts({"data": [(await api.call("GET", f"{path}/{each}"))[1] for each in ids]}) == [
            *("msg_mine 1", "msg_x0001 1"),
            *("msg_mine 2", "msg_x0001 2"),
        ]
        if store:
            assert await ids_of(api, f"/responses/{last['id']}/input_items") == ids
        status, _ = await api.call("DELETE", f"{path}/msg_mine")
        assert (status, await ids_of(api, path)) == (200, ids[1:])


@pytest.mark.parametrize("forgets", [True, False])
async def test_a_reference_does_not_depend_on_the_newest_response(forgets: bool) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api)
        mine = {**message("remember"), "id": "msg_mine"}
        _, first = await run_turn(server, engine, "yes", input=[mine], conversation=conversation)
        _, second = await run_turn(server, engine, "and?", input="more", conversation=conversation)
        if forgets:
            for response_id in (first, second):
                assert (await api.call("DELETE", f"/responses/{response_id}"))[0] == 200
        reference = {"type": "item_reference", "id": "msg_mine"}
        context, _ = await run_turn(server, engine, "again", input=[reference], conversation=conversation)
        assert [b"remember" in raw for raw in context] == [True, False, False, False, True]


async def test_items_of_a_conversation_can_be_referenced_outside_it() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = Api(server)
        conversation = await created(api, "added")
        mine = {**message("brought by a turn"), "id": "msg_mine"}
        _, response = await run_turn(server, engine, "an answer", input=[mine], conversation=conversation)
        assert (await api.call("DELETE", f"/responses/{response}"))[0] == 200
        ids = await ids_of(api, f"/conversations/{conversation}/items")
        references = [{"type": "item_reference", "id": each} for each in ids]
        other = await created(api)
        for fields in ({}, {"conversation": other}):
            context, _ = await run_turn(server, engine, "x", input=references, **fields)
            found = [word in raw for raw in context for word in (b"added", b"brought", b"an answer")]
            assert found == [True, False, False, False, True, False, False, False, True]
        # The same id of another item: which one is meant is not known, except within a conversation.
        third = await created(api)
        fields = {"input": [{**message("of the third"), "id": "msg_mine"}], "conversation": third}
        await run_turn(server, engine, "x", **fields)
        reference = {"type": "item_reference", "id": "msg_mine"}
        status, error = await server.post(input=[reference])
        assert (status, error["error"]["param"]) == (400, "input[0].id")
        context, _ = await run_turn(server, engine, "x", input=[reference], conversation=third)
        assert b"of the third" in context[-1]


@pytest.mark.parametrize("store", [True, False])
async def test_a_listed_item_can_be_referred_to_in_the_same_conversation(store: bool) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        api = Api(server)
        conversation = await created(api)
        await socket.create(input="remember", conversation=conversation, store=store)
        (await engine.next()).finish()
        await socket.until("response.completed")
        page = await listed(api, conversation, order="asc")
        reference = {"type": "item_reference", "id": page["first_id"]}
        await socket.create(input=[reference], conversation=conversation, store=store)
        performance = await engine.next()
        assert [b"remember" in item.raw for item in performance.job.context()] == [True, True]
        performance.finish()
        await socket.until("response.completed")


async def test_an_error_names_the_position_in_the_clients_input() -> None:
    async with serve() as server:
        conversation = await created(Api(server), "a", "b")
        orphan = {"type": "function_call_output", "call_id": "call_x", "output": "1"}
        for item, param in (
            (orphan, "input[1].call_id"),
            ({"type": "item_reference", "id": "msg_nobody"}, "input[1].id"),
            ({"type": "compaction", "encrypted_content": "foreign"}, "input[1].encrypted_content"),
        ):
            status, error = await server.post(input=[message("x"), item], conversation=conversation)
            assert (status, error["error"]["param"]) == (400, param)
            assert "input[3]" not in error["error"]["message"]


async def test_an_error_in_a_conversation_item_does_not_name_the_input() -> None:
    async with serve() as server:
        api = Api(server)
        orphan = {"type": "function_call_output", "call_id": "call_x", "output": "1"}
        _, conversation = await api.call("POST", "/conversations", json={"items": [orphan]})
        status, error = await server.post(input="x", conversation=conversation["id"])
        assert (status, error["error"]["param"]) == (400, "conversation")
