"""What Codex is told about the models of a server."""

from typing import Any

from msgspec import structs

from slipring.config.tables import ModelEntry
from slipring.core.generation import Capabilities, Defaults, Model
from tests.harness import FAST, PuppetEngine, Running, serve

QUESTION = "/models?client_version=0.166.0"


async def described(server: Running, path: str = QUESTION) -> dict[str, Any]:
    async with server.http.get(f"{server.url}{path}") as answer:
        assert answer.status == 200
        body: dict[str, Any] = await answer.json()
        return body


class Offering(PuppetEngine):
    """Offers the given models."""

    def __init__(self, *models: Model) -> None:
        super().__init__()
        self._offered = models

    def models(self) -> list[Model]:
        return list(self._offered)


async def test_codex_gets_its_form_beside_the_list_of_the_api() -> None:
    known = Model(name="a", owner="tests", capabilities=Capabilities(), context_tokens=4096)
    async with serve(Offering(known, structs.replace(known, name="b"))) as server:
        plain = await described(server, "/models")
        assert set(plain) == {"object", "data"}
        body = await described(server)
    assert body["data"] == plain["data"]
    first, second = body["models"]
    assert (first["slug"], first["priority"], second["slug"], second["priority"]) == ("a", 0, "b", 1)
    assert first["base_instructions"]
    assert {name: value for name, value in first.items() if name != "base_instructions"} == {
        "slug": "a",
        "display_name": "a",
        "description": "a (tests)",
        "supported_reasoning_levels": [],
        "visibility": "list",
        "priority": 0,
        "truncation_policy": {"mode": "bytes", "limit": 4096},
        "input_modalities": ["text"],
        "context_window": 4096,
        "max_context_window": 4096,
        "shell_type": "unified_exec",
        "supported_in_api": True,
        "supports_parallel_tool_calls": True,
        "supports_reasoning_summaries": True,
        "support_verbosity": False,
        "experimental_supported_tools": [],
        "include_apps_usage_instructions": False,
    }


async def test_only_what_is_known_is_told() -> None:
    unknown = Model(name="unknown", owner="chat", capabilities=Capabilities())
    thinking = structs.replace(
        unknown,
        name="thinking",
        capabilities=Capabilities(images=True),
        context_tokens=131_072,
        efforts=("none", "medium"),
        defaults=Defaults(effort="medium"),
    )
    upstream = structs.replace(unknown, name="gpt-5.5", is_upstream=True)
    async with serve(Offering(unknown, thinking, upstream)) as server:
        body = await described(server)
    assert [model["id"] for model in body["data"]] == ["unknown", "thinking", "gpt-5.5"]
    first, second = body["models"]
    assert not first.keys() & {"context_window", "max_context_window", "default_reasoning_level"}
    assert first["truncation_policy"]["limit"] == second["truncation_policy"]["limit"] == 10_000
    assert second["input_modalities"] == ["text", "image"]
    assert second["context_window"] == 131_072
    assert [level["effort"] for level in second["supported_reasoning_levels"]] == ["none", "medium"]
    assert second["default_reasoning_level"] == "medium"


async def test_other_names_of_a_model_are_known_but_not_shown() -> None:
    entries = (ModelEntry("large", FAST, aliases=("l",)), ModelEntry("small", FAST))
    async with serve(models=entries) as server:
        body = await described(server)
    shown = [(model["slug"], model["visibility"]) for model in body["models"]]
    assert shown == [("large", "list"), ("small", "list"), ("l", "hide")]
