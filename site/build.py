"""Builds the documentation as a site: ``make site``.

Pages are copied to ``build/pages``, where links to files of the project that are no pages lead to its source,
and the generator writes ``build/site``. The addresses come from ``[project.urls]`` in pyproject.toml.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS, BUILD = ROOT / "docs", ROOT / "build"
_LINK = re.compile(r"\]\((\.\.?/[^)#\s]+)")


def prepare(urls: dict[str, str], version: str) -> Path:
    """Write the pages and the configuration; return its path."""
    pages = BUILD / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages)
    for page in pages.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(with_links_to_source(text, page.relative_to(pages), urls["Source"]), encoding="utf-8")
    config = BUILD / "mkdocs.yml"
    added = {
        "site_url": f"{urls['Documentation']}/",
        "repo_url": urls["Source"],
        "copyright": f"slipring {version}, Apache-2.0",
    }
    lines = [f"{key}: {value}" for key, value in added.items()]
    settings = Path(__file__).with_name("mkdocs.yml").read_text(encoding="utf-8")
    config.write_text("\n".join([settings, *lines, ""]), encoding="utf-8")
    return config


def with_links_to_source(text: str, page: Path, source: str) -> str:
    """A page whose links out of ``docs`` lead to the source of the project."""

    def replaced(link: re.Match[str]) -> str:
        target = ((DOCS / page).parent / link[1]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        return f"]({source}/{target.relative_to(ROOT).as_posix()}"

    return _LINK.sub(replaced, text)


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config = prepare(project["urls"], project["version"])
    generator = Path(sys.executable).with_name("zensical")
    done = subprocess.run([str(generator), "build", "--strict", "--clean", "-f", str(config)], check=False)
    if done.returncode == 0:
        print(f"the site is in {(BUILD / 'site').relative_to(ROOT)}: open {BUILD.name}/site/index.html")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
