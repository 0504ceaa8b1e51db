"""``POST /v1/moderations``."""

from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types import Moderation, ModerationCreateResponse

from slipring.base.errors import StartupError
from slipring.config.tables import CheckEntry, PolicyEntries
from tests.api import Api
from tests.harness import Running, serve

WORDS = CheckEntry("words", "patterns", '{"patterns":{"violence":"bomb","tea":"tea"}}')
TOOLS = CheckEntry(
    "function", "python:tests.safety.checking:synchronous_check", '{"word":"tea"}', subjects=("tool_output",)
)
DOWN = CheckEntry("down", "moderations", '{"url":"http://127.0.0.1:9"}')


def client(server: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0)


async def test_the_sdk_gets_a_result_for_each_text_with_all_categories() -> None:
    async with serve(checks=(WORDS,)) as server, client(server) as openai:
        found = await openai.moderations.create(input=["a bomb", "coffee"])
        ModerationCreateResponse.model_validate(found.to_dict(), strict=True)
        assert (found.model, found.id[:5]) == ("omni-moderation-latest", "modr_")
        assert [each.flagged for each in found.results] == [True, False]
        first, second = found.results
        assert first.categories.violence
        assert not first.categories.hate
        assert (first.category_scores.violence, second.category_scores.violence) == (1.0, 0.0)
        assert first.category_applied_input_types.violence == ["text"]
        assert first.category_applied_input_types.hate == []


@pytest.mark.parametrize(
    "sent", ["some tea", ["some tea"], [{"type": "text", "text": "some"}, {"type": "text", "text": "tea"}]]
)
async def test_an_input_has_several_forms(sent: Any) -> None:
    async with serve(checks=(WORDS,)) as server, client(server) as openai:
        found = await openai.moderations.create(input=sent, model="words")
        assert found.model == "words"
        [result] = found.results
        assert result.categories.to_dict()["tea"] is True


async def test_a_name_chooses_one_check_and_the_default_all_of_the_callers_policy() -> None:
    keys = ("one:key-1", "two:key-2")
    policies = PolicyEntries(tenants=(("two", ("words",)),))
    async with serve(checks=(WORDS, TOOLS), policies=policies, api_key=keys) as server:
        reported = {}
        for tenant, key in (("one", "key-1"), ("two", "key-2")):
            for model in (None, "words", "function"):
                body = {"input": "tea", **({"model": model} if model is not None else {})}
                status, answer = await Api(server, key).call("POST", "/moderations", json=body)
                assert status == 200
                Moderation.model_validate(answer["results"][0], strict=True)
                scores = answer["results"][0]["category_scores"]
                reported[tenant, model] = [name for name in ("tea", "danger") if name in scores]
    assert reported == {
        ("one", None): ["tea", "danger"],
        ("one", "words"): ["tea"],
        ("one", "function"): ["danger"],
        ("two", None): ["tea"],
        ("two", "words"): ["tea"],
        ("two", "function"): ["danger"],
    }


async def test_a_server_without_checks_says_so() -> None:
    async with serve() as server, client(server) as openai:
        with pytest.raises(NotFoundError, match="not a safety check of this server; it has none"):
            await openai.moderations.create(input="x")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": 3}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input[1]"),
        ({"input": ["a"] * 257}, 400, "input"),
        ({"input": [{"type": "text"}]}, 400, "input[0].text"),
        ({"input": [{"type": "image_url", "image_url": {"url": "x"}}]}, 400, "input[0]"),
        ({"input": "x", "model": "nobody"}, 404, "model"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_invalid_requests_are_refused(body: dict[str, Any], status: int, param: str) -> None:
    async with serve(checks=(WORDS,)) as server:
        got, error = await Api(server).call("POST", "/moderations", json=body)
        assert (got, error["error"]["param"]) == (status, param)


async def test_a_check_that_fails_is_named_and_health_and_metrics_show_it() -> None:
    async with serve(checks=(DOWN, WORDS)) as server:
        api = Api(server)
        for number in range(6):
            status, error = await api.call("POST", "/moderations", json={"input": str(number)})
            assert (status, error["error"]["code"]) == (503, "service_unavailable")
            assert (
                "The check 'down' gave no answer: the server cannot be reached" in error["error"]["message"]
            )
        async with server.http.get(server.url.removesuffix("/v1") + "/health") as answer:
            health = await answer.json()
            assert (answer.status, health["status"]) == (200, "degraded")
        [down, words] = health["checks"]
        assert (down["name"], words) == ("down", {"name": "words", "trouble": None})
        assert down["trouble"].startswith("the server cannot be reached")
        values = server.server.metrics.snapshot().values
        found = {(name, each.labels): each.value for name in values for each in values[name]}
        assert found["slipring_check_up", ("down",)] == 0
        assert found["slipring_check_up", ("words",)] == 1
        assert found["slipring_check_failures_total", ("down", "source")] == 5
        assert found["slipring_check_failures_total", ("down", "breaker")] == 1
        assert found["slipring_check_texts_total", ("words", "passed")] == 6
        assert found["slipring_check_calls_total", ("down",)] == 5


async def test_a_server_whose_check_cannot_start_does_not_start() -> None:
    with pytest.raises(StartupError, match="check 'x': its factory raised RuntimeError: no model"):
        async with serve(checks=(CheckEntry("x", "python:tests.safety.checking:broken_factory"),)):
            pass
