"""The guides, followed from the first command to the last."""

import importlib.metadata
import re
import shlex
import sys
import tomllib
from pathlib import Path

from tests.engines.fakes.server import Say, Stop
from tests.engines.fakes.vllm import FakeVllm
from tests.guides.hub import MODEL, hub_environment, tokenizer_hub
from tests.guides.page import DOCS, Guide, blocks
from tests.postgres import Postgres


def test_every_guide_is_followed_here() -> None:
    followed = set(
        re.findall(r'Guide\(\s*"guides/([a-z-]+\.md)"', Path(__file__).read_text(encoding="utf-8"))
    )
    assert {path.name for path in (DOCS / "guides").glob("*.md")} == followed


async def test_tenants_with_limits(tmp_path: Path) -> None:
    async with Guide("guides/tenants-with-limits.md", tmp_path) as guide:
        await guide.follow()


async def test_slow_turn(tmp_path: Path) -> None:
    async with Guide("guides/slow-turn.md", tmp_path) as guide:
        await guide.follow()


async def test_two_nodes_on_postgresql(tmp_path: Path, postgres: Postgres) -> None:
    host = postgres.url.partition("host=")[2].partition("&")[0]

    def replace(text: str) -> str:
        text = text.replace("postgresql://127.0.0.1:5432/postgres", f"'{postgres.url}'")
        return text.replace("@127.0.0.1:5432/slipring", f"@/slipring?host={host}")

    def require_extra(command: str) -> None:
        (extra,) = re.findall(r"\.\[(\w+)\]", command)
        assert extra in importlib.metadata.metadata("slipring").get_all("Provides-Extra", [])

    async with Guide("guides/two-nodes-on-postgresql.md", tmp_path, replace, postgres.programs) as guide:
        await guide.follow({"pip": require_extra})


async def test_codex_on_vllm(tmp_path: Path) -> None:
    """vLLM is a stand-in that is written from its source. Codex itself is run by ``make clients``."""
    hub, vllm = tokenizer_hub(), FakeVllm()
    vllm.model_name = MODEL
    with hub.running():
        environ = hub_environment(hub, tmp_path)
        async with Guide("guides/codex-on-vllm.md", tmp_path, environ=environ) as guide:
            vllm.port = int(guide.ports["8000"])
            await vllm.start()
            vllm.script(Say(("Hello", "!")), Stop())
            ports = set(guide.ports)

            def check_vllm(command: str) -> None:
                words = shlex.split(command)
                assert words[2] == MODEL
                assert words[words.index("--port") + 1] == guide.ports["8000"]

            def check_codex(command: str) -> None:
                assert command.startswith("SLIPRING_KEY=any codex exec ")

            try:
                await guide.follow({"vllm": check_vllm, "codex": check_codex})
            finally:
                await vllm.close()
    assert ports == {"8000", "9000"}
    (config,) = [
        tomllib.loads(block.text) for block in blocks("guides/codex-on-vllm.md") if block.language == "toml"
    ]
    assert config["model"] == MODEL
    assert config["model_providers"]["slipring"]["base_url"] == "http://127.0.0.1:9000/v1"


_CLAUDE = """#!{python}
import os, anthropic
client = anthropic.Anthropic()  # its address and its key are those of the environment
ask = [{{"role": "user", "content": "Say hello"}}]
answer = client.messages.create(model=os.environ["ANTHROPIC_MODEL"], max_tokens=50, messages=ask)
print(answer.content[0].text)
for name, value in sorted(os.environ.items()):
    if name.startswith(("ANTHROPIC_", "CLAUDE_CODE_")):
        print(f"{{name}}={{value}}")
"""


async def test_claude_code_on_vllm(tmp_path: Path) -> None:
    """vLLM is a stand-in, and so is a program that only asks. ``make clients`` runs Claude Code itself."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "claude").write_text(_CLAUDE.format(python=sys.executable))
    (programs / "claude").chmod(0o755)
    hub, vllm = tokenizer_hub(), FakeVllm()
    vllm.model_name = MODEL
    with hub.running():
        environ = hub_environment(hub, tmp_path)
        async with Guide("guides/claude-code.md", tmp_path, programs=str(programs), environ=environ) as guide:
            vllm.port = int(guide.ports["8000"])
            await vllm.start()
            vllm.script(Say(("Hello", "!")), Stop())

            def check_vllm(command: str) -> None:
                assert shlex.split(command)[2] == MODEL

            try:
                printed = await guide.follow({"vllm": check_vllm})
            finally:
                await vllm.close()
    assert printed is not None
    hello, *variables = printed.splitlines()
    assert hello == "Hello!"
    (shown,) = [
        guide.local(block.text)
        for block in blocks("guides/claude-code.md")
        if "ANTHROPIC_MODEL=" in block.text
    ]
    # The stand-in does not say how long a context may be.
    described = [line for line in shown.splitlines() if "MAX_CONTEXT_TOKENS" not in line]
    assert sorted(described) == [line for line in variables if "MAX_CONTEXT_TOKENS" not in line]
