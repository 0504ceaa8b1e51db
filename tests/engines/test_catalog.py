"""The catalog: models by name, and the engines that serve them."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipring.base.errors import ModelNotFound, StartupError
from slipring.config.settings import ConfigError
from slipring.core.generation import Defaults
from slipring.engines.catalog import Catalog, Entry, open_engine
from slipring.server.process.server import Server
from tests.config.test_settings import load
from tests.harness import PuppetEngine, Running, serve

FAST = "simulated:tokens_per_s=0,output_tokens=3"
OTHER = "simulated:tokens_per_s=0,output_tokens=9"


def written(path: Path, text: str) -> list[str]:
    file = path / "slipring.toml"
    file.write_text(text, encoding="utf-8")
    return ["--config", str(file), "--port", "0"]


async def test_an_engines_models_are_served_under_their_own_names_or_others() -> None:
    engine = open_engine(FAST)
    catalog = Catalog.of_engine(engine)
    assert list(catalog) == []
    await catalog.start()
    assert [model.name for model in catalog] == ["simulated"]
    renamed = Catalog.of_engine(engine, ["small", "large"])
    await renamed.start()
    assert [(model.name, model.own_name) for model in renamed] == [
        ("small", "simulated"),
        ("large", "simulated"),
    ]


@pytest.mark.parametrize("kind", ["chat", "responses", "sglang", "vllm"])
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("", r"as in {kind}:http\S+$"),
        ("127.0.0.1:8000", r"as in {kind}:http\S+, not '127\.0\.0\.1:8000'$"),
        ("http://", r"as in {kind}:http\S+, not 'http://'$"),
        ("http://127.0.0.1:8000 model=m", "without spaces; options follow after commas, as in ,model=NAME$"),
    ],
)
def test_what_is_no_address_of_a_server_fails_with_one_line(kind: str, address: str, complaint: str) -> None:
    with pytest.raises(StartupError, match=complaint.format(kind=kind)) as raised:
        open_engine(f"{kind}:{address}")
    assert str(raised.value).startswith(f"--engine {kind}: needs the address of a server, as in {kind}:http")


async def test_entries_share_engines_and_have_aliases_and_defaults() -> None:
    calm = Defaults(temperature=0.5)
    catalog = Catalog.of_entries(
        [
            Entry("a", FAST, aliases=("x", "y")),
            Entry("b", FAST, "simulated", defaults=calm),
            Entry("c", OTHER),
        ]
    )
    await catalog.start()
    assert len(catalog.engines) == 2
    assert catalog.find(None).name == "a"
    assert catalog.find("y").name == "a"
    assert catalog.find("b").defaults == calm
    assert catalog.engine_of(catalog.find("b")) is catalog.engine_of(catalog.find("x"))
    with pytest.raises(ModelNotFound, match="'a', 'b', 'c', 'x', 'y'"):
        catalog.find("z")


async def test_a_model_that_its_engine_does_not_have_is_refused_at_start() -> None:
    with pytest.raises(StartupError, match=r"models.a: simulated has no model 'nope' \(it has: simulated\)"):
        await Catalog.of_entries([Entry("a", FAST, "nope")]).start()


async def test_a_model_says_who_runs_its_hosted_tools() -> None:
    behind = "responses:http://127.0.0.1:9,model=up"
    catalog = Catalog.of_entries(
        [
            Entry("a", FAST),
            Entry("b", FAST, hosted_tools="refuse"),
            Entry("c", f"{behind},hosted_tools=upstream"),
            Entry("d", behind, hosted_tools="upstream"),
            Entry("e", f"{behind},hosted_tools=upstream", hosted_tools="here"),
        ]
    )
    catalog.look_up_models()
    hosting = ["here", "refuse", "upstream", "upstream", "here"]
    assert [model.hosted_tools for model in catalog] == hosting
    with pytest.raises(StartupError, match=r"models.a: 'hosted_tools' can be 'upstream' with"):
        Catalog.of_entries([Entry("a", FAST, hosted_tools="upstream")]).look_up_models()


TABLE = f"""
[models.quick]
engine = "{FAST}"
aliases = ["q"]
[models.long]
engine = "{OTHER}"
hosted_tools = "refuse"
[models.long.defaults]
max_output_tokens = 4
temperature = 0.25
effort = "low"
"""


async def test_a_table_of_models_is_served(tmp_path: Path) -> None:
    config = load(written(tmp_path, TABLE), {})
    server = Server(config)
    await server.start()
    try:
        await check_table(server)
    finally:
        await server.stop()


async def check_table(server: Server) -> None:
    async with aiohttp.ClientSession() as http:
        running = Running(server, http)
        async with http.get(f"{running.url}/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["quick", "long"]
        async with running.connect() as socket:
            first = await socket.response(input="hello", model="q", store=False)
            assert (first["model"], first["usage"]["output_tokens"]) == ("quick", 3)
            second = await socket.response(
                input="more", model="long", previous_response_id=first["id"], store=False
            )
            assert (second["status"], second["usage"]["output_tokens"]) == ("incomplete", 4)
            assert (second["temperature"], second["max_output_tokens"]) == (0.25, 4)
            assert second["reasoning"]["effort"] == "low"
            asked = await socket.response(input="more", model="long", max_output_tokens=2, store=False)
            assert asked["usage"]["output_tokens"] == 2
            refused = await socket.error(input="hello", model="long", tools=[{"type": "web_search"}])
            assert (refused["status"], refused["error"]["param"]) == (400, "tools[0].type")
            unknown = await socket.error(input="hello", model="unknown")
            assert (unknown["status"], unknown["error"]["code"]) == (404, "model_not_found")
            assert "'quick', 'long', 'q'" in unknown["error"]["message"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("models = 3", "must be a table of tables"),
        ("[models]", "must be a table of tables"),
        ("[models]\na = 1", "models.a: must be a table in "),
        ("[models.a]", "'engine' is missing"),
        ("[models.a]\nengine = 'llama'\ncolour = 1", "unknown key 'colour'"),
        ("[models.a]\nengine = 'llama'\nmodel = 1", "'model' must be a string"),
        ("[models.a]\nengine = 'llama'\naliases = 'x'", "'aliases' must be a list"),
        ("[models.a]\nengine = 'llama'\naliases = ['a']", "the name 'a' is given twice"),
        ("[models.a]\nengine = 'llama'\nhosted_tools = 'there'", "must be one of here, upstream, refuse"),
        ("[models.a]\nengine = 'llama'\nhosted_tools = ''", "must be one of here, upstream, refuse"),
        ("[models.a]\nengine = 'llama'\ndefaults = 1", "models.a: 'defaults' must be a table in "),
        ("[models.a]\nengine = 'llama'\ndefaults = {top_k = 1}", "unknown key 'top_k'"),
        ("[models.a]\nengine = 'llama'\ndefaults = {top_p = 'x'}", "'top_p' must be a number from 0 to 1"),
        ("[models.a]\nengine = 'llama'\ndefaults = {temperature = 3}", "must be a number from 0 to 2"),
    ],
)
def test_an_unusable_table_fails_with_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(written(tmp_path, text), {})


def test_an_unknown_effort_is_refused_at_start(tmp_path: Path) -> None:
    text = "[models.a]\nengine = 'simulated'\ndefaults = {effort = 'huge'}"
    with pytest.raises(StartupError, match="'effort' must be one of none, minimal"):
        Server(load(written(tmp_path, text), {}))


class Troubled(PuppetEngine):
    trouble_now: str | None = None

    @property
    def trouble(self) -> str | None:
        return self.trouble_now


async def test_health_names_the_engine_in_trouble() -> None:
    engine = Troubled()
    async with serve(engine) as server:
        engine.trouble_now = "it rests"
        async with server.http.get(server.url.removesuffix("/v1") + "/health") as answer:
            body: dict[str, Any] = await answer.json()
        assert (answer.status, body["status"]) == (503, "degraded")
        assert body["engines"] == [{"name": "puppet", "trouble": "it rests", "sessions": None}]


def test_the_documented_table_is_valid(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    _, example, _ = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    config = load(written(tmp_path, example), {})
    assert [model.name for model in config.models] == ["small", "large"]
