"""What the documents say is run: snippets, commands, links, tables."""

import importlib.metadata
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from slipring import __version__
from slipring.commands.cli import build_parser
from slipring.config.settings import from_namespace
from slipring.config.tables import CheckEntry, McpRegistration
from slipring.core.limits import Limits
from slipring.core.session import actions
from slipring.core.session.actions import Action, Work
from slipring.engines.addresses_and_options import reference
from slipring.engines.catalog import Catalog, open_engine
from slipring.engines.chat import options as chat
from slipring.engines.hub.model_names import full_name
from slipring.engines.llama.options import LlamaOptions, read_options
from slipring.engines.llama.packaged_model import MODEL_COMMAND
from slipring.engines.llama.served_model import locate, name_of
from slipring.engines.remote.upstream import UpstreamOptions
from slipring.engines.responses import options as responses
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.script import read_script
from slipring.engines.tokens import server_options
from slipring.engines.tokens.server_options import VllmOptions
from slipring.engines.tokens.template_choice import NAMES
from slipring.prompts import fallback_reasons
from slipring.protocol.turn_report import Mark, StageName, TurnReport
from slipring.safety.sources.catalog import open_source
from slipring.safety.sources.guard import GuardSettings
from slipring.safety.sources.moderations import ModerationsSettings
from slipring.safety.sources.patterns import PatternsSettings, PersonalDataSettings
from tests import test_layers
from tests.harness import Running, serve
from tests.mcp.fakes import Exchange, FakeServer, Reply, serving
from tests.model import ServeModel
from tests.snippets import run_snippet

pytestmark = pytest.mark.usefixtures("compiled_here")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = sorted(page for folder in ("guides", "recipes") for page in (DOCS / folder).glob("*.md"))
"""Their commands are run by ``tests/guides``."""
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted({*DOCS.rglob("*.md")} - {*GUIDES})]
READERS: dict[str, Callable[[str], Any]] = {
    "chat": chat.read_options,
    "llama": read_options,
    "responses": responses.read_options,
    "sglang": partial(server_options.read_options, "sglang", server_options.TokenServerOptions),
    "vllm": partial(server_options.read_options, "vllm", VllmOptions),
}
"""Of engines whose models and servers need not be here for an example of them."""
ENDING = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=1"
"""An engine that calls a tool, if there is one, and answers."""
USEFUL = "Qwen/Qwen3-8B-GGUF"
"""The model of the README, in whose place the tests serve a tiny one."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def place_of(page: Path) -> str:
    """A page by its path below ``docs``, or by its name."""
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block of a language: where it stands, and its text."""
    return [
        (f"{place_of(page)}:{text.count(chr(10), 0, found.start()) + 1}", found.group(2))
        for page in PAGES
        for text in [page.read_text()]
        for found in BLOCK.finditer(text)
        if found.group(1) == language
    ]


def commands() -> list[tuple[str, str]]:
    return [
        (where, line.split("  #")[0].strip())
        for where, text in blocks("sh")
        for line in text.replace("\\\n", "").splitlines()
        # Those of backups are run for real by ``tests/stores/test_backups.py``.
        if line.strip() and not line.startswith("#") and not where.startswith("backups.md")
    ]


@pytest.mark.parametrize(("where", "text"), [each for each in blocks("toml") if "[[check]]" in each[1]])
def test_checks_in_toml_snippets_can_be_opened(where: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "slipring.toml"
    path.write_text(text)
    config = from_namespace(build_parser().parse_args(["serve", "--config", str(path)]), {})
    assert config.checks
    for check in config.checks:
        if check.source != "pii":  # its package is not installed
            source = check.source.replace("python:", "python:examples.")
            open_source(replace(check, source=source), Catalog({}))


def test_the_pages_on_safety_list_every_key_and_setting() -> None:
    pages = (DOCS / "safety.md", DOCS / "safety" / "sources.md")
    page = "\n".join(each.read_text(encoding="utf-8") for each in pages)
    forms = (CheckEntry, GuardSettings, ModerationsSettings, PatternsSettings, PersonalDataSettings)
    names = {name for form in forms for name in form.__annotations__}
    assert not {name for name in names if f"`{name}`" not in page}


@asynccontextmanager
async def serve_with_clock(names: tuple[str, ...]) -> AsyncIterator[Running]:
    """A server whose MCP server ``time`` has the tool that snippets name."""

    async def tell(exchange: Exchange) -> Reply:
        return {"content": [{"type": "text", "text": "It is noon."}]}

    fake = FakeServer(modern=True)
    fake.tools = [{"name": "get_current_time", "inputSchema": {"type": "object"}}]
    fake.calls = {"get_current_time": tell}
    async with serving(fake):
        time = McpRegistration("time", url=fake.url)
        async with serve(ENDING, model=names, mcp=(time,)) as running:
            yield running


@pytest.mark.parametrize(("where", "code"), blocks("python"))
async def test_python_snippets_run_as_they_stand(
    request: pytest.FixtureRequest, where: str, code: str
) -> None:
    names = (name_of(locate(LlamaOptions())[0]), USEFUL)  # those that snippets name
    # The tiny model ends neither calls nor answers by itself, and is faster than who steers it.
    if "steer" in code:
        served: AbstractAsyncContextManager[Running] = serve("simulated:tokens_per_s=200", model=names)
    elif '"mcp"' in code:
        served = serve_with_clock(names)
    elif "tools" in code or "agents" in code:
        served = serve(ENDING, model=names)
    else:
        model: ServeModel = request.getfixturevalue("tiny")
        served = model(slots=1, context=512, model=names)
    async with served as server:
        # Clients of the Messages API are given the address without the version.
        address = server.url.removesuffix("/v1")
        printed = await run_snippet(code.replace("http://127.0.0.1:8000", address))
    assert printed.strip() or "print(" not in code


@pytest.mark.parametrize(("where", "command"), commands())
def test_commands_exist(where: str, command: str) -> None:
    """``make`` targets are there; ``slipring`` commands parse, with an engine that can be made."""
    words = [word for word in shlex.split(command) if word != "export"]
    environ = {}
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environ[name] = value
    words = words or ["slipring", "serve"]  # variables that a later command reads
    program = Path(words[0]).name
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
    elif program == "slipring":
        arguments = build_parser().parse_args(words[1:])
        if arguments.command != "serve":
            return
        arguments.config = None  # the file of an example need not be here
        kind, _, rest = full_name(from_namespace(arguments, environ).engine).partition(":")
        if kind in READERS:
            READERS[kind](rest)
        else:
            open_engine(f"{kind}:{rest}")
    elif program == "pip":  # run for real by the test of the wheel
        for extra in re.findall(r"\[([a-z]+)\]", command):
            assert extra in importlib.metadata.metadata("slipring").get_all("Provides-Extra", [])
        assert "==" not in command or command == MODEL_COMMAND
    elif program == "vllm":
        assert words[1] == "serve"  # somebody else's: only what it is asked to do
    elif program == "python":
        assert (ROOT / words[1]).exists() or words[1] == "-m"
    else:
        raise AssertionError(f"{where}: nobody checks '{program}' commands")


def test_links_within_the_project_lead_somewhere() -> None:
    for page in [*PAGES, *GUIDES]:
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if target.startswith("http"):
                continue
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name} → {target}"
            if anchor and place.suffix == ".md":
                assert anchor in anchors(place), f"{page.name} → {target}#{anchor}"


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    texts = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def test_no_placeholder_is_left() -> None:
    for page in [*PAGES, *GUIDES]:
        assert "@@" not in page.read_text(), page


def test_the_security_page_names_limits_with_their_defaults() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`([a-z_]+)` \(([^)]+)\)", page)
    assert named
    for name, shown in named:
        assert shown == _shown(name, getattr(Limits(), name)), name


def _shown(name: str, default: float) -> str:
    if name.endswith("_bytes"):
        unit, size = ("MiB", 2**20) if default >= 2**20 else ("KiB", 2**10)
        return f"{default / size:g} {unit}"
    return f"{default:g} s" if name.endswith("_s") else str(default)


def test_the_tests_that_the_threat_model_names_exist() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) == page.count("::")
    for path, name in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{path} has no {name}"
    promises = [line for line in page.partition("## Tenants")[2].splitlines() if line.startswith("| ")]
    rows = [line for line in promises if not line.startswith(("| promise", "| ---"))]
    assert rows
    assert all("::" in line for line in rows), "every promise has a test"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_changelog_knows_this_version() -> None:
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"slipring:{__version__}\n" in (ROOT / "deploy" / "kubernetes" / "slipring.yaml").read_text()


def test_no_page_or_message_needs_a_published_package() -> None:
    """There is none yet: what an index has under this name is not this project."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    by_name = re.compile(r"(?:pip|pipx|uv tool|uv pip) install [^`\n]*\bslipring(?![-\w/.])(?! *#)")
    checkout = re.compile(r"in a checkout of slipring")
    named = [
        f"{page.name}: {found.group()}"
        for page in pages
        for found in by_name.finditer(checkout.sub("", page.read_text(encoding="utf-8")))
    ]
    assert not named


OPTIONS = [
    (LlamaOptions, None, "llama"),
    (SimulatedOptions, None, "simulated"),
    (UpstreamOptions, None, "servers"),
    (server_options.TokenServerOptions, UpstreamOptions, "vllm-sglang"),
    (VllmOptions, server_options.TokenServerOptions, "vllm-sglang"),
    (responses.ResponsesOptions, UpstreamOptions, "responses"),
    (chat.ChatOptions, UpstreamOptions, "chat"),
]


@pytest.mark.parametrize(("options", "beyond", "page"), OPTIONS)
def test_the_options_of_engines_are_documented(
    options: type[Any], beyond: type[Any] | None, page: str
) -> None:
    table = reference(options, beyond)
    text = (DOCS / "engines" / f"{page}.md").read_text()
    assert table in text, f"docs/engines/{page}.md lacks this table:\n{table}"


def test_documented_scripts_play(tmp_path: Path) -> None:
    for where, text in blocks("jsonl"):
        path = tmp_path / f"{where.translate({58: '-', 47: '-'})}.jsonl"
        path.write_text(text)
        assert read_script(str(path)).next()


def architecture_rows() -> list[list[str]]:
    """The packages in each row of the table of packages."""
    page = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    table = page.partition("## The packages")[2].partition("\n## ")[0]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines() if line[:3] == "| `"]


def test_the_table_of_packages_names_every_package() -> None:
    named = {name for row in architecture_rows() for name in row}
    for path in test_layers.modules():
        module = path.relative_to(test_layers.SRC)
        if module.parts[0] not in ("__init__.py", "__main__.py"):
            package = (module.parent if len(module.parts) > 1 else module.with_suffix("")).as_posix()
            assert package in named or module.with_suffix("").as_posix() in named or _is_part(package), module
    for name in named:
        place = test_layers.SRC / name
        assert place.is_dir() or place.with_suffix(".py").exists(), f"the page names {name}"


def _is_part(package: str) -> bool:
    """Of packages whose parts the page does not name one by one."""
    return package.startswith(("commands/bench/", "engines/constraints/", "prompts/templates/builtin"))


def test_the_architecture_page_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    named = {
        name for line in table.splitlines() for name in re.findall(r"`([a-z]+)`", line.partition("|")[2][:40])
    }
    assert named == {test_layers.top_of(path) for path in test_layers.modules()} - {
        "__main__",
        "__init__",
        "",
    }


def test_the_table_has_packages_below_those_that_they_import() -> None:
    tops = [name.partition("/")[0] for row in architecture_rows() for name in row]
    first = {top: tops.index(top) for top in tops}
    last = {top: len(tops) - 1 - tops[::-1].index(top) for top in tops}
    for path in test_layers.modules():
        own = test_layers.top_of(path)
        for imported in test_layers.within_the_package(path):
            other = imported.partition(".")[0]
            if own in first and other and other != own:
                assert last[other] < first[own], f"{own} imports {other}"


def test_the_architecture_page_names_every_action() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| actions | |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.count("|") > 1]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    kinds = {each for each in get_args(Action) if not issubclass(get_origin(each) or each, Work)}
    work = {each for each in vars(actions).values() if isinstance(each, type) and issubclass(each, Work)}
    assert named == {each.__name__ for each in (*kinds, *work - {Work})}


def test_the_page_on_timing_names_every_stage_and_field() -> None:
    page = (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page.partition("Also recorded")[0], re.MULTILINE)
    assert sorted(rows) == sorted(get_args(StageName))
    for name in (*TurnReport.__struct_fields__, *get_args(Mark)):
        assert f"`{name}`" in page or f'"{name}"' in page, name


def test_reasons_for_fallback_reasons_and_formats_are_documented() -> None:
    page = (ROOT / "docs" / "dialects.md").read_text(encoding="utf-8")
    texts = [value for name, value in vars(fallback_reasons).items() if name.isupper()]
    reasons = [text for text in texts if isinstance(text, str)]
    assert fallback_reasons.DROPS_THOUGHTS in reasons
    for reason in reasons:
        assert f"| {reason} |" in page
    for name in NAMES:
        assert f"`{name}`" in page


@pytest.mark.parametrize("page", ["architecture.md", "internals.md", "contributing.md", "dialects.md"])
def test_files_that_pages_name_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", text):
        assert (ROOT / name).exists() or (ROOT / "src" / "slipring" / name).exists(), name


def test_the_site_and_its_front_page_lead_to_every_page() -> None:
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    menu = re.findall(r": (\S+\.md)$", (ROOT / "site" / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(menu) == len(set(menu))
    assert set(menu) == pages
    front = set(re.findall(r"\]\(([^)#]+\.md)", (ROOT / "docs" / "index.md").read_text()))
    assert front == pages - {"index.md"}
