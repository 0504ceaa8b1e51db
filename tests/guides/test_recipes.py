"""The recipes, followed from the first command to the last.

Servers and clients that are not installed here are stand-ins: fakes of servers, and programs that check what
they are started with. ``make clients`` runs the clients themselves.
"""

import importlib.metadata
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipring.commands.cli import build_parser
from tests.engines.fakes.chat import FakeChatServer
from tests.engines.fakes.hub import FakeHub
from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.vllm import FakeVllm
from tests.guides.hub import MODEL, hub_environment, tokenizer_hub
from tests.guides.page import DOCS, Guide, blocks
from tests.harness import serve
from tests.model import SharedModel

ROOT = DOCS.parent
RECIPES = DOCS / "recipes"
ENDING = "simulated:tokens_per_s=0,output_tokens=5"
StandIns = dict[str, Callable[[str], None]]


def test_every_recipe_is_followed_here() -> None:
    followed = set(re.findall(r'Guide\(\s*"recipes/([a-z-]+\.md)"', Path(__file__).read_text("utf-8")))
    assert {path.name for path in RECIPES.glob("*.md")} == followed


def test_recipes_are_short() -> None:
    assert {path.name for path in RECIPES.glob("*.md") if path.read_text("utf-8").count("\n") > 60} == set()


def require_extra(command: str) -> None:
    (extra,) = re.findall(r"\.\[(\w+)\]", command)
    assert extra in importlib.metadata.metadata("slipring").get_all("Provides-Extra", [])


def says(words: list[str], *needed: str) -> None:
    assert all(each in words for each in needed), words


@pytest.fixture
def tiny_hub(tiny_path: str) -> FakeHub:
    return FakeHub({f"{MODEL}-GGUF": {"Qwen3-8B-Q4_K_M.gguf": Path(tiny_path).read_bytes()}})


async def test_the_embedded_model(tmp_path: Path, tiny_hub: FakeHub) -> None:
    with tiny_hub.running():
        environ = hub_environment(tiny_hub, tmp_path)
        async with Guide("recipes/embedded.md", tmp_path, environ=environ) as guide:
            await guide.follow({"pip": require_extra})


async def test_llama_server(tmp_path: Path, tiny_model: SharedModel) -> None:
    def with_key(text: str) -> str:
        return text.replace("llama:http://127.0.0.1:8080", "llama:http://127.0.0.1:8080,key_env=TINY_KEY")

    environ = {"TINY_KEY": tiny_model.key}
    async with Guide("recipes/llama-server.md", tmp_path, with_key, environ=environ) as guide:
        guide.ports["8080"] = tiny_model.url.rpartition(":")[2]
        started: list[str] = []
        printed = await guide.follow({"llama-server": started.append})
    assert printed is not None
    assert json.loads(printed)["status"] == "ok"
    says(shlex.split(started[0]), "--slot-save-path", "--port", guide.ports["8080"])


async def test_ollama(tmp_path: Path) -> None:
    ollama = FakeChatServer()
    ollama.models = ["qwen3:8b"]
    await ollama.start()
    try:
        async with Guide("recipes/ollama.md", tmp_path) as guide:
            guide.ports["11434"] = ollama.url.removesuffix("/v1").rpartition(":")[2]
            started: list[str] = []
            printed = await guide.follow({"ollama": started.append})
    finally:
        await ollama.close()
    assert printed is not None
    assert printed.startswith("ok")
    assert [shlex.split(each)[-2:] for each in started] == [["ollama", "serve"], ["pull", "qwen3:8b"]]


async def test_vllm(tmp_path: Path) -> None:
    hub, vllm = tokenizer_hub(), FakeVllm()
    vllm.model_name = MODEL
    await vllm.start()
    vllm.script(Say(("Hello", "!")), Stop())
    try:
        with hub.running():
            environ = hub_environment(hub, tmp_path)
            async with Guide("recipes/vllm.md", tmp_path, environ=environ) as guide:
                guide.ports["8000"] = vllm.url.rpartition(":")[2]
                started: list[str] = []
                printed = await guide.follow({"vllm": started.append})
    finally:
        await vllm.close()
    assert printed is not None
    assert printed.startswith("Hello!")
    says(shlex.split(started[0]), MODEL, "--enable-prompt-tokens-details")


async def test_sglang(tmp_path: Path) -> None:
    hub, sglang = tokenizer_hub(), FakeSglang()
    sglang.model_name = MODEL
    await sglang.start()
    try:
        with hub.running():
            environ = hub_environment(hub, tmp_path)
            async with Guide("recipes/sglang.md", tmp_path, environ=environ) as guide:
                guide.ports["30000"] = sglang.url.rpartition(":")[2]
                started: list[str] = []
                printed = await guide.follow({"python": started.append})
    finally:
        await sglang.close()
    assert printed is not None
    assert json.loads(printed)["status"] == "ok"
    says(shlex.split(started[0]), "sglang.launch_server", MODEL, "--context-length")


_PROGRAM = """#!{python}
import json, os, pathlib, sys
seen = {{"arguments": sys.argv[1:], "environ": dict(os.environ)}}
with pathlib.Path({file!r}).open("a") as file:
    print(json.dumps(seen), file=file)
"""


class Started:
    """A program in a directory of its own that writes down what it is started with."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory / "programs"
        self._file = directory / "started.jsonl"
        self.directory.mkdir()
        program = self.directory / name
        program.write_text(_PROGRAM.format(python=sys.executable, file=str(self._file)))
        program.chmod(0o755)

    def runs(self) -> list[tuple[list[str], dict[str, str]]]:
        found = [json.loads(line) for line in self._file.read_text("utf-8").splitlines()]
        return [(each["arguments"], each["environ"]) for each in found]


async def followed_by(page: str, program: str, directory: Path) -> tuple[str, Started]:
    """Follow the recipe of a client, which is a stand-in; returns the server's URL and what was started."""
    started = Started(directory, program)
    async with serve(ENDING) as server, make_guide(page, directory, str(started.directory)) as guide:
        guide.ports["9000"] = server.url.removesuffix("/v1").rpartition(":")[2]
        await guide.follow()
    return server.url, started


def make_guide(page: str, directory: Path, programs: str) -> Guide:
    return {
        "claude-code": lambda: Guide("recipes/claude-code.md", directory, programs=programs),
        "codex": lambda: Guide("recipes/codex.md", directory, programs=programs),
        "aider": lambda: Guide("recipes/aider.md", directory, programs=programs),
        "open-webui": lambda: Guide("recipes/open-webui.md", directory, programs=programs),
    }[page]()


async def test_claude_code(tmp_path: Path) -> None:
    url, claude = await followed_by("claude-code", "claude", tmp_path)
    (first, environ), (second, _) = claude.runs()
    assert (first, second) == ([], ["-p", "Say hello"])
    assert environ["ANTHROPIC_BASE_URL"] == url.removesuffix("/v1")


async def test_codex(tmp_path: Path) -> None:
    url, codex = await followed_by("codex", "codex", tmp_path)
    (first, _), (second, _) = codex.runs()
    says(first, f"model_providers.slipring.base_url={json.dumps(url)}")
    says(second, "exec", "--skip-git-repo-check")


async def test_aider(tmp_path: Path) -> None:
    url, aider = await followed_by("aider", "aider", tmp_path)
    (_, environ), (second, _) = aider.runs()
    assert environ["OPENAI_API_BASE"] == url
    says(second, "openai/simulated", "--message")


async def test_open_webui(tmp_path: Path) -> None:
    url, webui = await followed_by("open-webui", "open-webui", tmp_path)
    ((arguments, environ),) = webui.runs()
    assert arguments[0] == "serve"
    assert (environ["OPENAI_API_BASE_URL"], environ["ENABLE_OLLAMA_API"]) == (url, "False")


async def test_the_openai_and_agents_sdks(tmp_path: Path) -> None:
    async with serve(ENDING) as server, Guide("recipes/openai-sdk.md", tmp_path) as guide:
        guide.ports["9000"] = server.url.removesuffix("/v1").rpartition(":")[2]
        printed = await guide.follow()
    assert printed is not None
    assert printed.strip()


async def test_kubernetes(tmp_path: Path) -> None:
    """Nothing of it can be run here: its commands parse, and its files exist."""

    def parse(command: str) -> None:
        build_parser().parse_args(shlex.split(command)[1:])

    async with Guide("recipes/kubernetes.md", tmp_path) as guide:
        await guide.follow({"slipring": parse})
    named = [
        word
        for block in blocks("recipes/kubernetes.md")
        for word in block.text.split()
        if word.startswith("deploy/")
    ]
    assert named
    for name in named:
        assert (ROOT / name).exists() or name == "deploy/slipring", name
