"""Drawing modules joined into one script: those of reports, and those that they share with the live page.

The live page loads its modules one by one; a report is a single file that needs no server, so the modules are
written into it, each as a function of its own. One definition of stages, colours and drawings serves both.
Still figures are drawn by the same modules, in a JavaScript engine without a browser.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

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
