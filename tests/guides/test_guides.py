"""The guides, followed from the first command to the last."""

import importlib.metadata
import re
import shlex
import shutil
import tomllib
from pathlib import Path

from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.tokens import tokenizer_directory
from tests.engines.fakes.vllm import FakeVllm
from tests.guides.page import GUIDES, Guide, blocks
from tests.postgres import Postgres

MODEL = "Qwen/Qwen3-8B"


def test_every_guide_is_followed_here() -> None:
    followed = set(re.findall(r'Guide\(\s*"([a-z-]+\.md)"', Path(__file__).read_text(encoding="utf-8")))
    assert {path.name for path in GUIDES.glob("*.md")} == followed


async def test_tenants_with_limits(tmp_path: Path) -> None:
    async with Guide("tenants-with-limits.md", tmp_path) as guide:
        await guide.follow()


async def test_slow_turn(tmp_path: Path) -> None:
    async with Guide("slow-turn.md", tmp_path) as guide:
        await guide.follow()


async def test_two_nodes_on_postgresql(tmp_path: Path, postgres: Postgres) -> None:
    host = postgres.url.partition("host=")[2].partition("&")[0]

    def replace(text: str) -> str:
        text = text.replace("postgresql://127.0.0.1:5432/postgres", f"'{postgres.url}'")
        return text.replace("@127.0.0.1:5432/slipring", f"@/slipring?host={host}")

    def require_extra(command: str) -> None:
        (extra,) = re.findall(r"\.\[(\w+)\]", command)
        assert extra in importlib.metadata.metadata("slipring").get_all("Provides-Extra", [])

    async with Guide("two-nodes-on-postgresql.md", tmp_path, replace, postgres.programs) as guide:
        await guide.follow({"pip": require_extra})


async def test_codex_on_vllm(tmp_path: Path) -> None:
    """vLLM is a stand-in that is written from its source. Codex itself is run by ``make clients``."""
    vllm = FakeVllm()
    vllm.model_name = MODEL
    async with Guide("codex-on-vllm.md", tmp_path) as guide:
        vllm.port = int(guide.ports["8000"])
        await vllm.start()
        vllm.script(Say(("Hello", "!")), Stop())
        ports = set(guide.ports)

        def check_vllm(command: str) -> None:
            words = shlex.split(command)
            assert words[2] == MODEL
            assert words[words.index("--port") + 1] == guide.ports["8000"]

        def download(command: str) -> None:
            words = shlex.split(command)
            target = tmp_path / words[words.index("--local-dir") + 1]
            target.mkdir()
            for name in words[3 : words.index("--local-dir")]:
                shutil.copy(Path(tokenizer_directory()) / name, target / name)

        def check_codex(command: str) -> None:
            assert command.startswith("SLIPRING_KEY=any codex exec ")

        try:
            await guide.follow({"vllm": check_vllm, "hf": download, "codex": check_codex})
        finally:
            await vllm.close()
    assert ports == {"8000", "9000"}
    (config,) = [
        tomllib.loads(block.text) for block in blocks("codex-on-vllm.md") if block.language == "toml"
    ]
    assert config["model"] == MODEL
    assert config["model_providers"]["slipring"]["base_url"] == "http://127.0.0.1:9000/v1"
