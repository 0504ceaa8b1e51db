"""What reports draw with: scripts, some of them shared with the live page, and the colours, dashes and
markers of modes.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.commands.bench.results import ModeDescription
from slipring.observation.drawing_files import DRAWINGS

REPORT = Path(__file__).with_name("report.js")
_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./([a-z_]+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.M)


def script(entry: Path) -> str:
    """A module and all that it imports as one without imports. Modules are looked up beside the entry, here,
    and among those that the live page draws with."""
    joined: dict[str, str] = {}
    body = _without_imports(entry, (entry.parent, Path(__file__).parent, DRAWINGS), joined)
    return "\n".join([*joined.values(), f"{{\n{body}}}"])


def still(entry: Path, data: dict[str, Any]) -> str:
    """What the function ``draw`` that a module defines makes of the data, without a browser. Raises
    ``ImportError`` without the extra ``svg``."""
    import quickjs

    engine = quickjs.Context()
    engine.eval(script(entry))
    engine.set("data", msgspec.json.encode(data).decode())
    # As JSON, because the engine cannot hand out strings that it has kept in pieces.
    drawn: str = engine.eval("JSON.stringify(draw(JSON.parse(data)))")
    return msgspec.json.decode(drawn, type=str)


def colours() -> str:
    """The stylesheet with the colours of pages and drawings."""
    return _stylesheet("colours.css")


def stage_colours() -> str:
    """The stylesheet with the colours of stages."""
    return _stylesheet("stages.css")


def _stylesheet(name: str) -> str:
    """A stylesheet without its comments."""
    return re.sub(r"/\*.*?\*/\s*", "", (DRAWINGS / name).read_text(encoding="utf-8"), flags=re.S)


def _without_imports(path: Path, folders: tuple[Path, ...], joined: dict[str, str]) -> str:
    """The code of a module, with what it imports taken from those that are joined before it."""
    text = path.read_text(encoding="utf-8")
    for _, name in _IMPORT.findall(text):
        if name not in joined:
            found = next(folder for folder in folders if (folder / f"{name}.js").is_file())
            body = _without_imports(found / f"{name}.js", folders, joined)
            exported = ", ".join(name for _, name in _EXPORT.findall(body))
            body = _EXPORT.sub(r"\1", body)
            joined[name] = f"const of_{name} = (() => {{\n{body}return {{ {exported} }};\n}})();"
    return _IMPORT.sub(r"const {\1} = of_\2;\n", text)


HTTP = "http"
"""Prefix of the names of HTTP modes."""
LIGHT = ("#a62b00", "#c07c00", "#d6279b", "#0a3f8f", "#0a9a7a", "#7b3ff2")
DARK = ("#d9642c", "#ffe06b", "#f0459a", "#3f84ff", "#98f5e1", "#b9a4ff")
_PLOT_STYLE = """
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.mark{fill:var(--mode)}.band{fill:var(--mode);opacity:.16}
.line{fill:none;stroke:var(--mode);stroke-width:2;stroke-linejoin:round}
"""
_FAMILY = 3
_DASHES = ("7 3", "2 3", "1 4", None, "10 3 2 3", "5 2 1 2 1 2")
"""By colour: the first mode that is not HTTP has a solid line."""
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "bar")


class Style(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line style of a mode."""

    css: str
    """Class that sets the colour."""
    mark: str
    dash: str | None = None
    """None for a solid line."""


def styles(modes: Sequence[ModeDescription]) -> dict[str, Style]:
    """Styles by mode name. The same modes in the same order have the same styles in every report."""
    found: dict[str, Style] = {}
    used = [0, 0]
    for index, mode in enumerate(modes):
        family = 0 if mode.name.startswith(HTTP) else 1
        colour = family * _FAMILY + used[family] % _FAMILY
        used[family] += 1
        found[mode.name] = Style(css=f"m{colour}", dash=_DASHES[colour], mark=_MARKS[index % len(_MARKS)])
    return found


def css() -> str:
    """Colours of page and modes, light and dark, and the style of plots. Print is always light."""
    light, dark = _variables(LIGHT), _variables(DARK)
    classes = "".join(f".m{index}{{--mode:var(--m{index})}}" for index in range(len(LIGHT)))
    schemes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{colours()}{schemes}{classes}{_PLOT_STYLE}"


def _variables(modes: tuple[str, ...]) -> str:
    return "".join(f"--m{index}:{colour};" for index, colour in enumerate(modes))
