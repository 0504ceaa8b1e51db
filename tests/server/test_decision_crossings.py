"""Decisions and what else a server does with turns: keys, quotas, checks, tools, stores, workers, and clients
that leave."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slipring.config.tables import CheckEntry
from slipring.core.generation import Capabilities
from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.tokens import CONTEXT, tokenizer_directory
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import PuppetEngine, Reached, serve
from tests.server.endpoints.test_decisions import ANGER, LATE, TEAM, Oracle, ask, letters
from tests.server.issuing import bearer, issue, revoke, serve_stored
from tests.server.process.test_workers import workers
from tests.server.process.test_workers_apis import both
from tests.server.raw import until

Json = dict[str, Any]
MANY = [{**LATE, "name": str(number)} for number in range(10)]


async def asked(
    server: Reached, key: str, *questions: Json, model: str = "puppet", **fields: Any
) -> tuple[int, Json, Any]:
    body = {"model": model, "input": "Where is my parcel?", "questions": questions, **fields}
    async with server.http.post(f"{server.url}/decisions", json=body, headers=bearer(key)) as answer:
        return answer.status, await answer.json(), answer.headers


# Keys and quotas ---------------------------------------------------------------------------------


async def test_a_decision_is_one_request_of_a_quota_however_many_questions_it_has(tmp_path: Path) -> None:
    async with serve_stored(tmp_path, Oracle(letters)) as server:
        key = await issue(server, requests_per_minute=2)
        status, _, headers = await asked(server, key, *MANY)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "1")
        assert (await asked(server, key, LATE))[0] == 200
        status, body, headers = await asked(server, key, LATE)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert headers["retry-after"] == "45"


async def test_a_decision_costs_as_many_tokens_of_a_quota_as_its_usage_says(tmp_path: Path) -> None:
    async with serve_stored(tmp_path, Oracle(letters)) as server:
        key = await issue(server, tokens_per_day=10_000)
        _, first, _ = await asked(server, key, LATE, TEAM, ANGER)
        _, second, headers = await asked(server, key, LATE)
        spent = first["usage"]["total_tokens"] + second["usage"]["total_tokens"]
        assert int(headers["x-ratelimit-remaining-tokens"]) == 10_000 - spent


async def test_a_revoked_key_decides_nothing(tmp_path: Path) -> None:
    async with serve_stored(tmp_path, Oracle(letters)) as server:
        key = await issue(server)
        assert (await asked(server, key, LATE))[0] == 200
        await revoke(server, key)
        assert (await asked(server, key, LATE))[0] == 401


# Checks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["block", "cut"])
async def test_a_check_that_refuses_the_answer_to_a_question_refuses_that_question(action: Any) -> None:
    check = CheckEntry("words", "patterns", '{"patterns":{"no":"No"}}', action=action, subjects=("answer",))

    def answer(text: str) -> list[Any]:
        return letters(text.replace("late", "")) if "team" in text else letters(text)

    async with serve(Oracle(answer), checks=(check,)) as server:
        found = await ask(server, LATE, TEAM)
        assert [each["type"] for each in found["answers"]] == ["predicate", "choice"], "it says Yes and B"
    check = CheckEntry("words", "patterns", '{"patterns":{"yes":"Yes"}}', action=action, subjects=("answer",))
    async with serve(Oracle(answer), checks=(check,)) as server:
        found = await ask(server, LATE, TEAM)
        assert [each["type"] for each in found["answers"]] == ["refusal", "choice"]


# Tools, background, stores -----------------------------------------------------------------------


async def test_a_decision_has_no_tools_runs_at_once_and_stores_nothing(tmp_path: Path) -> None:
    engine = Oracle(letters)
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    extra: Json = {"tools": [tool], "background": True, "store": True, "stream": True}
    async with serve_stored(tmp_path, engine) as server:
        key = await issue(server)
        status, body, _ = await asked(server, key, LATE, **extra)
        assert (status, len(body["answers"])) == (200, 1)
        assert all(not job.offer.tools for job in engine.jobs)
        rows = await server.service.store.responses._database.read("SELECT id FROM slipring_responses")
        assert rows == []


# Workers, clients that leave ---------------------------------------------------------------------


async def test_every_worker_decides() -> None:
    async with fake_vllm() as fake:
        options = (
            f"tokenizer={tokenizer_directory()},model={fake.model_name},context={CONTEXT},dialect=chatml"
        )
        async with (
            workers("--engine", f"vllm:{fake.url},{options}") as server,
            both(server) as found,
        ):
            for worker in found:
                fake.script(Say(("ok",)), Stop())  # of the input
                fake.script(Say(("Yes",)), Stop())
                status, body, _ = await asked(worker, "any", LATE, model=fake.model_name)
                assert status == 200, body
                assert body["answers"][0]["probability"] > 0.5


async def test_the_questions_of_a_client_that_has_left_are_ended() -> None:
    engine = PuppetEngine(Capabilities(logprobs=True))
    async with serve(engine) as server:
        asking = asyncio.create_task(asked(server, "test-key", *MANY))
        first = await engine.next()
        first.finish()
        jobs = [await engine.next() for _ in range(8)]
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: all(job.stopped.is_set() for job in jobs))
        await until(lambda: not server.service.clients)
        assert engine._performances.empty()
