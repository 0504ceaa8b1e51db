"""Two nodes on one PostgreSQL store: each uses what the other has stored, at once."""

import asyncio
import itertools
from typing import Any

import pytest

from slipring.commands.cli import main
from tests.api import Api
from tests.engines.fakes.server import Ids, Stop
from tests.engines.fakes.tokens import TOKENIZER
from tests.engines.fakes.vllm import FakeVllm, tokens_of
from tests.harness import FAST, PuppetEngine
from tests.nodes.pairs import node_of, pair

TURNS = 6


async def texts(api: Api, path: str) -> list[str]:
    """The texts of a list of items, oldest first."""
    status, page = await api.call("GET", f"{path}?order=asc&limit=100")
    assert status == 200
    return ["".join(part["text"] for part in item["content"]) for item in page["data"]]


async def check_history(api: Api, chain: list[dict[str, Any]]) -> None:
    """Assert that the newest response has the whole history, once and in order."""
    history = await texts(api, f"/responses/{chain[-1]['id']}/input_items")
    answers = [response["output"][0]["content"][0]["text"] for response in chain[:-1]]
    questions = [f"turn {number}" for number in range(len(chain))]
    expected = [text for pair in itertools.zip_longest(questions, answers) for text in pair if text]
    assert history == expected
    sizes = [response["usage"]["input_tokens"] for response in chain]
    assert sizes == sorted(set(sizes)), "every turn has more input than the one before"


async def test_a_chain_alternates_between_nodes_over_http(postgres_url: str) -> None:
    async with pair(postgres_url) as nodes:
        chain: list[dict[str, Any]] = []
        for number in range(TURNS):
            previous = chain[-1]["id"] if chain else None
            status, response = await nodes[number % 2].post(
                input=f"turn {number}", previous_response_id=previous
            )
            assert status == 200, response
            chain.append(response)
            other = Api(nodes[(number + 1) % 2])
            assert await other.read(response["id"]) == response
            await check_history(other, chain)
        assert [node_of(response) for response in chain] == [
            nodes[number % 2].service.node_id for number in range(TURNS)
        ]


async def test_a_chain_alternates_between_nodes_over_sockets(postgres_url: str) -> None:
    async with pair(postgres_url) as nodes, nodes[0].connect() as one, nodes[1].connect() as other:
        chain: list[dict[str, Any]] = []
        for number in range(TURNS):
            previous = chain[-1]["id"] if chain else None
            socket = (one, other)[number % 2]
            chain.append(await socket.response(input=f"turn {number}", previous_response_id=previous))
        for node in nodes:
            await check_history(Api(node), chain)
        assert {node_of(response) for response in chain} == {node.service.node_id for node in nodes}
        # A fork in the middle, on the node that did not make it.
        fork = await other.response(input="fork", previous_response_id=chain[2]["id"])
        assert fork["usage"]["input_tokens"] < chain[-1]["usage"]["input_tokens"]


async def test_a_stored_turn_brings_its_unstored_parent_along(postgres_url: str) -> None:
    async with pair(postgres_url) as (here, there), here.connect() as socket:
        passing = await socket.response(input="turn 0", store=False)
        kept = await socket.response(input="turn 1", previous_response_id=passing["id"])
        assert (await Api(there).call("GET", f"/responses/{passing['id']}"))[0] == 404
        status, last = await there.post(input="turn 2", previous_response_id=kept["id"])
        assert status == 200
        await check_history(Api(there), [passing, kept, last])


async def test_the_other_node_sends_exactly_the_token_ids_that_were_generated(postgres_url: str) -> None:
    """Ids that no tokenizer would choose: a node that tokenized the text again would send others."""
    odd = tuple(id for letter in "hello" for id in TOKENIZER.encode(letter))
    assert list(odd) != TOKENIZER.encode("hello")
    fake = FakeVllm()
    await fake.start()
    engines = [fake.engine(retries=0) for _ in range(2)]
    async with pair(postgres_url, *engines) as nodes:
        previous = None
        for number in range(4):
            fake.script(Ids(odd), Stop())
            _, response = await nodes[number % 2].post(input=f"turn {number}", previous_response_id=previous)
            previous = response["id"]
        for number, (parent, child) in enumerate(itertools.pairwise(fake.prompts), 1):
            turn = f"<|im_start|>user\nturn {number}<|im_end|>\n<|im_start|>assistant\n"
            assert child == [*parent, *odd, *tokens_of(f"<|im_end|>\n{turn}")]
        for node in nodes:
            async with node.http.get(node.url.removesuffix("/v1") + "/health") as answer:
                assert (await answer.json())["render_fallbacks"] == {}
    await fake.close()


async def test_a_response_deleted_on_one_node_is_gone_on_the_other(postgres_url: str) -> None:
    async with pair(postgres_url) as (here, there):
        _, response = await here.post(input="hello")
        status, child = await there.post(input="more", previous_response_id=response["id"])
        assert status == 200, "the other node has it in memory now"
        assert (await Api(here).call("DELETE", f"/responses/{response['id']}"))[0] == 200
        assert (await Api(there).call("GET", f"/responses/{response['id']}"))[0] == 404
        status, error = await there.post(input="more", previous_response_id=response["id"])
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")
        assert (await here.post(input="more", previous_response_id=child["id"]))[0] == 200


async def test_both_nodes_continue_one_conversation(postgres_url: str) -> None:
    async with pair(postgres_url) as nodes, nodes[0].connect() as one, nodes[1].connect() as other:
        status, conversation = await Api(nodes[0]).call("POST", "/conversations", json={})
        assert status == 200
        expected: list[str] = []
        sizes = []
        for number in range(TURNS):
            fields = {"input": f"turn {number}", "conversation": conversation["id"]}
            if number < TURNS // 2:
                status, response = await nodes[number % 2].post(**fields)
                assert status == 200, response
            else:
                response = await (one, other)[number % 2].response(**fields)
            expected += [f"turn {number}", response["output"][0]["content"][0]["text"]]
            sizes.append(response["usage"]["input_tokens"])
            for node in nodes:
                assert await texts(Api(node), f"/conversations/{conversation['id']}/items") == expected
        assert sizes == sorted(set(sizes))
        assert len({later - earlier for earlier, later in itertools.pairwise(sizes)}) == 1, "turn by turn"


async def test_concurrent_turns_in_one_conversation_are_all_kept(postgres_url: str) -> None:
    engines = PuppetEngine(), PuppetEngine()
    async with pair(postgres_url, *engines) as nodes:
        _, conversation = await Api(nodes[0]).call("POST", "/conversations", json={})
        asked = [
            asyncio.create_task(node.post(input=f"from {number}", conversation=conversation["id"]))
            for number, node in enumerate(nodes)
        ]
        performances = [await engine.next() for engine in engines]
        for number, performance in enumerate(performances):
            performance.say(f"to {number}")
            performance.finish()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]
        items = await texts(Api(nodes[1]), f"/conversations/{conversation['id']}/items")
        assert sorted([items[:2], items[2:]]) == [["from 0", "to 0"], ["from 1", "to 1"]]
        # The next turn sees both.
        last = asyncio.create_task(nodes[0].post(input="and?", conversation=conversation["id"]))
        performance = await engines[0].next()
        assert len(list(performance.job.context())) == 5
        performance.finish()
        assert (await last)[0] == 200


async def keys(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `slipring keys` and return its output."""
    code = await asyncio.to_thread(main, ["keys", *arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out.strip()


async def test_a_key_is_valid_on_all_nodes_until_it_is_revoked(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", postgres_url)
    key = await keys(capsys, "create", "--tenant", "team", *where)
    other = await keys(capsys, "create", "--tenant", "others", *where)
    async with pair(postgres_url, FAST, FAST) as nodes:
        async with nodes[0].connect(key=key) as one, nodes[1].connect(key=key) as two:
            response = await one.response(input="hello")
            assert (await two.response(input="more", previous_response_id=response["id"]))["id"]
            status, error = await nodes[1].post(key=other, input="x", previous_response_id=response["id"])
            assert (status, error["error"]["code"]) == (400, "previous_response_not_found")
            await keys(capsys, "revoke", key.removeprefix("sk-slip-").partition(".")[0], *where)
            for socket in (one, two):
                refused = await socket.error(input="again")
                assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")
        for node in nodes:
            assert (await node.post(key=key, input="again"))[0] == 401
            assert (await node.post(key=other, input="still here"))[0] == 200
