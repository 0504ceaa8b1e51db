"""Import rules, read from the source.

``ALLOWED`` lists what each package may import. ``protocol``, ``core`` and ``prompts`` are pure: no I/O, no
clock, no randomness.
"""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "slipring"

ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "protocol": ("errors", "protocol"),
    "core": ("errors", "protocol", "core"),
    "models": (),
    "spelling": (),
    "config": ("core.limits", "models", "spelling"),
    "reference": ("config",),
    "prompts": ("errors", "protocol", "core.generation", "core.chain.head", "prompts"),
    "sandbox": ("errors", "sandbox"),
    "engines": (
        *("errors", "protocol", "core.generation", "core.chain.head", "core.limits"),
        *("prompts", "sandbox", "engines", "spelling"),
    ),
    "stores": ("errors", "protocol", "core", "stores"),
    "keys": ("errors", "config", "protocol.wire", "stores", "keys"),
    "server": (
        *("", "errors", "config", "models", "protocol"),
        *("core", "engines", "sandbox", "stores", "keys.token", "server"),
    ),
    "chat": ("chat",),
    "bench": ("", "bench"),
    "progress": (),
    "openapi": ("", "protocol", "openapi"),
    "cli": ("", "errors", "config", "progress", "server", "chat", "keys", "openapi", "bench", "spelling"),
    "__main__": ("cli",),
    "__init__": (),
}
PURE = ("protocol", "core", "prompts")
IMPURE_MODULES = frozenset(
    "aiohttp asyncio concurrent datetime io logging multiprocessing os pathlib random secrets select"
    " selectors signal socket sqlite3 ssl subprocess sys tempfile threading time urllib uuid uvloop".split()
)


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def layer_of(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every absolute module that a file imports, those for type checkers included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (SRC.parent / f"{inner.replace('.', '/')}.py").exists()
                found.append(inner if is_module else node.module)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_follow_the_arrows(path: Path) -> None:
    allowed = ALLOWED[layer_of(path)]
    for name in imports(path):
        if name == "slipring" or name.startswith("slipring."):
            inner = name.removeprefix("slipring").removeprefix(".")
            assert any(inner == arrow or (arrow and inner.startswith(f"{arrow}.")) for arrow in allowed), (
                f"{path.relative_to(SRC)} must not import {name}"
            )


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if layer_of(path) in PURE],
    ids=lambda path: str(path.relative_to(SRC)),
)
def test_the_core_is_pure(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & IMPURE_MODULES


def test_every_layer_has_its_arrows() -> None:
    assert {layer_of(path) for path in modules()} == set(ALLOWED)


def test_nothing_but_the_server_asks_which_transport_it_is() -> None:
    for path in modules():
        if layer_of(path) in ("protocol", "core", "engines", "stores"):
            names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            assert not {name for name in names if "websocket" in name.lower() or name.lower() == "sse"}, path


def test_every_module_says_what_it_owns() -> None:
    for path in modules():
        assert ast.get_docstring(ast.parse(path.read_text())), path
