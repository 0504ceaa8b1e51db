"""The script of the HTML page: the drawing modules of the live page, joined with ``report.js``.

The live page loads its modules one by one; a report is a single file that needs no server, so the modules are
written into it, each as a function of its own. One definition of stages, colours and drawings serves both.
"""

import re
from pathlib import Path

import slipring

PAGE = Path(slipring.__file__).parent / "server" / "admin" / "page"
_ENTRY = Path(__file__).with_name("report.js")
_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./([a-z_]+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.M)


def script() -> str:
    """One module without imports, which draws the charts of the page."""
    joined: dict[str, str] = {}
    body = _without_imports(_ENTRY, joined)
    return "\n".join([*joined.values(), f"{{\n{body}}}"])


def colours() -> str:
    """The stylesheet with the colours of pages and drawings."""
    return re.sub(r"/\*.*?\*/\s*", "", (PAGE / "colours.css").read_text(encoding="utf-8"), flags=re.S)


def _without_imports(path: Path, joined: dict[str, str]) -> str:
    """The code of a module, with what it imports taken from those that are joined before it."""
    text = path.read_text(encoding="utf-8")
    for _, name in _IMPORT.findall(text):
        if name not in joined:
            body = _without_imports(PAGE / f"{name}.js", joined)
            exported = ", ".join(name for _, name in _EXPORT.findall(body))
            body = _EXPORT.sub(r"\1", body)
            joined[name] = f"const of_{name} = (() => {{\n{body}return {{ {exported} }};\n}})();"
    return _IMPORT.sub(r"const {\1} = of_\2;\n", text)
