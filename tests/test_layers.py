"""Import rules, read from the source.

``ALLOWED`` lists what each package may import; a part with a line of its own has only the arrows of that
line. ``protocol``, ``core``, ``prompts`` and ``mcp/protocol`` are pure: no I/O, no clock, no randomness.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "slipring"

CLIENT_PARTS = tuple(f"commands.{name}" for name in ("argument_parser", "child_server", "client_environment"))
ALLOWED: dict[str, tuple[str, ...]] = {
    "base": ("base",),
    "protocol": ("base.errors", "protocol"),
    "core": ("base.errors", "protocol", "core"),
    "config": ("base.errors", "core.checks", "core.limits", "config"),
    "prompts": (
        *(
            "base.errors",
            "protocol",
            "core.generation",
            "core.chain.instructions_and_tools",
            "core.token_estimates",
        ),
        "prompts",
    ),
    "observation": ("protocol.turn_report", "observation"),
    "sandbox": ("base.errors", "base.periodic_tasks", "core.tenant_caches", "sandbox"),
    "engines": (
        *(
            "base",
            "protocol",
            "core.generation",
            "core.chain.instructions_and_tools",
            "core.limits",
            "core.token_estimates",
        ),
        *("prompts", "sandbox", "observation.live_messages", "engines"),
    ),
    "engines.vllm_plugin": ("engines.vllm_plugin",),
    "mcp": ("", "base.surrogates", "mcp"),
    "safety": (
        *("base.connection_failures", "base.errors", "base.tenant_slots", "config.tables", "protocol"),
        *("sandbox", "core.checks", "core.chain", "core.generation", "core.tenant_caches"),
        *("core.turn.response_object", "safety"),
    ),
    "stores": ("base.errors", "protocol", "core", "stores"),
    "server": (
        *("", "base", "config", "protocol", "core", "mcp", "engines", "safety", "sandbox", "stores"),
        *("observation", "server"),
    ),
    "commands": ("", "base", "config", "commands"),
    "commands.bench": ("", "base", "observation.drawing_files", *CLIENT_PARTS, "commands.bench"),
    "commands.chat": ("base", *CLIENT_PARTS, "commands.chat"),
    "commands.config": ("base", "config", "engines.catalog", "engines.hub", "server"),
    "commands.doctor": ("base", "config.settings", "engines", "server", "stores", "commands.doctor"),
    "commands.inspection": (
        *("base", "protocol", "core.generation", "core.chain", "core.turn.response_object", "prompts"),
        *("engines", "commands.argument_parser", "commands.inspection"),
    ),
    "commands.keys": ("base", "config", "protocol.wire", "stores"),
    "commands.launch": ("base", *CLIENT_PARTS, "commands.launch"),
    "commands.models": ("base", "engines.hub"),
    "commands.openapi": ("", "base.standard_streams", "protocol", "commands.openapi_schemas"),
    "commands.openapi_schemas": ("protocol",),
    "commands.serve": (
        *("", "base", "config.settings", "engines.hub", "server", "commands.config", "commands.doctor"),
        "commands.client_environment",
    ),
    "commands.top": (
        *("base", "protocol.turn_report", "observation", "commands.client_environment"),
        *("commands.argument_parser", "commands.top"),
    ),
    "__main__": ("", "base.standard_streams", "commands.cli"),
    "__init__": (),
}
PURE = ("protocol", "core", "prompts")
IMPURE_MODULES = frozenset(
    "aiohttp asyncio concurrent datetime io logging multiprocessing os pathlib random secrets select"
    " selectors signal socket sqlite3 ssl subprocess sys tempfile threading time urllib uuid uvloop".split()
)


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def top_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def layer_of(path: Path) -> str:
    """The longest key of ``ALLOWED`` that names the file, or a package that it is in; else its top."""
    parts = path.relative_to(SRC).with_suffix("").parts
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in ALLOWED), top_of(path))


def is_pure_mcp(path: Path) -> bool:
    return path.relative_to(SRC).parts[:2] == ("mcp", "protocol")


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import in a file, those for type checkers included."""
    nodes = statements(syntax_tree(path))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node, without looking into expressions, which are most of a tree."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, name, ())
        for each in inner if isinstance(inner, list) else ():
            yield each
            yield from statements(each)


@cache
def imports(path: Path) -> list[str]:
    """Every absolute module that a file imports."""
    found = []
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (SRC.parent / f"{inner.replace('.', '/')}.py").exists()
                found.append(inner if is_module else node.module)
    return found


def within_the_package(path: Path) -> list[str]:
    """The modules of this package that a file imports, without the package's name."""
    names = [name for name in imports(path) if name == "slipring" or name.startswith("slipring.")]
    return [name.removeprefix("slipring").removeprefix(".") for name in names]


def test_imports_follow_the_arrows() -> None:
    found = [
        f"{path.relative_to(SRC)} must not import slipring.{name}"
        for path in modules()
        for name in within_the_package(path)
        if not any(
            name == arrow or (arrow and name.startswith(f"{arrow}.")) for arrow in ALLOWED[layer_of(path)]
        )
    ]
    assert not found, "\n".join(found)


def test_the_core_is_pure() -> None:
    found = [
        f"{path.relative_to(SRC)} must not import {name}"
        for path in modules()
        if layer_of(path) in PURE or is_pure_mcp(path)
        for name in imports(path)
        if name.split(".")[0] in IMPURE_MODULES
    ]
    assert not found, "\n".join(found)


def modules_imported_by(path: Path) -> set[Path]:
    """The files of this package that a file imports anywhere in it."""
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {file_of(name) or file_of(node.module or "") for name in names}
        else:
            found |= {file_of(alias.name) for alias in node.names}
    return {each for each in found if each is not None and each != path}


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of this package, or None for any other name."""
    place = SRC.parent / module.replace(".", "/")
    candidates = (place.with_suffix(".py"), place / "__init__.py") if module.startswith("slipring") else ()
    return next((file for file in candidates if file.exists()), None)


def circles(imported: dict[Path, set[Path]]) -> list[list[Path]]:
    """Files that import each other, directly or through others: Tarjan's strongly connected components."""
    numbers: dict[Path, int] = {}
    lowest: dict[Path, int] = {}
    stack: list[Path] = []
    found: list[list[Path]] = []

    def visit(file: Path) -> None:
        numbers[file] = lowest[file] = len(numbers)
        stack.append(file)
        for other in sorted(imported[file]):
            if other not in numbers:
                visit(other)
                lowest[file] = min(lowest[file], lowest[other])
            elif other in stack:
                lowest[file] = min(lowest[file], numbers[other])
        if lowest[file] == numbers[file]:
            component = stack[stack.index(file) :]
            del stack[-len(component) :]
            if len(component) > 1:
                found.append(sorted(component))

    for file in sorted(imported):
        if file not in numbers:
            visit(file)
    return found


def test_no_two_files_import_each_other() -> None:
    imported = {path: modules_imported_by(path) for path in modules()}
    found = [[str(file.relative_to(SRC)) for file in circle] for circle in circles(imported)]
    assert not found, f"files that import each other: {found}"


def test_circles_are_found_through_any_number_of_files() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    assert circles({a: {b}, b: {c}, c: {a}, d: {a}}) == [[a, b, c]]
    assert circles({a: {b}, b: {c}, c: set(), d: {a, c}}) == []


def test_every_layer_has_its_arrows() -> None:
    assert {layer_of(path) for path in modules()} == set(ALLOWED)


def test_the_top_of_the_package_has_at_most_fourteen_names() -> None:
    names = {top_of(path) for path in modules()} - {"__init__"}
    assert len(names) <= 14, sorted(names)


def test_no_folder_has_more_than_fourteen_modules() -> None:
    counted = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert not {str(folder.relative_to(SRC)): count for folder, count in counted.items() if count > 14}


def test_nothing_but_the_server_asks_which_transport_it_is() -> None:
    for path in modules():
        if layer_of(path) in ("protocol", "core", "engines", "stores"):
            names = {node.id for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Name)}
            assert not {name for name in names if "websocket" in name.lower() or name.lower() == "sse"}, path


def test_every_module_says_what_it_owns() -> None:
    for path in modules():
        assert ast.get_docstring(syntax_tree(path)), path


def test_within_the_core_session_imports_turn_and_turn_imports_chain_and_checks() -> None:
    order, found = ("checks", "chain", "", "turn", "session"), []
    for path in modules():
        if layer_of(path) == "core":
            parts = path.relative_to(SRC).parts
            part = parts[1] if len(parts) > 2 else ""
            later = tuple(f"slipring.core.{name}." for name in order[order.index(part) + 1 :] if name)
            wrong = [name for name in imports(path) if f"{name}.".startswith(later)]
            found += [f"{path.relative_to(SRC)} must not import {name}" for name in wrong]
    assert not found, "\n".join(found)


def test_no_modules_of_core_and_protocol_import_each_other_in_a_circle() -> None:
    graph = {
        ".".join(("slipring", *path.relative_to(SRC).with_suffix("").parts)): imports(path)
        for path in modules()
        if layer_of(path) in ("core", "protocol")
    }
    while leaves := [name for name, used in graph.items() if not set(used) & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"in or behind a circle: {sorted(graph)}"
