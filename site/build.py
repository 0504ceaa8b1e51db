"""Builds the documentation as a site: ``make site``.

Pages are copied to ``build/pages``. There, links to files of the project that are no pages lead to its
source, and each figure has one version for the light palette and one for the dark. The generator writes
``build/site/VERSION``. Beside it, ``versions.json`` is what the generator's switch between versions reads,
and ``index.html`` leads to the newest version. To publish several, put the directories of earlier ones into
``build/site`` first. The addresses come from ``[project.urls]`` and ``[tool.slipring]`` in pyproject.toml.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS, BUILD = ROOT / "docs", ROOT / "build"
_LINK = re.compile(r"\]\((\.\.?/[^)#\s]+)")
_FIGURE = re.compile(r"!\[([^]]*)\]\(([^)#\s]+)\.svg\)")
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)
_DARK_ONLY = re.compile(r"@media screen and \(prefers-color-scheme: ?dark\)")


def prepare(urls: dict[str, str], files: str, version: str) -> Path:
    """Write the pages and the configuration; return its path. ``files`` is where this version is read."""
    pages = BUILD / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages)
    for page in pages.rglob("*.md"):
        text = with_links_to_source(page.read_text(encoding="utf-8"), page.relative_to(pages), files)
        page.write_text(with_both_palettes(text, page), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("extra.css"), pages)
    config = BUILD / "mkdocs.yml"
    added = {
        "site_dir": f"site/{version}",
        "site_url": f"{urls['Documentation']}/{version}/",
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
        target = Path(os.path.normpath((DOCS / page).parent / link[1]))
        if target.is_relative_to(DOCS):
            return link[0]
        return f"]({source}/{target.relative_to(ROOT).as_posix()}"

    return _LINK.sub(replaced, text)


def with_both_palettes(text: str, page: Path) -> str:
    """A page on which the site's palette chooses the version of a figure; writes both versions of a drawing
    that follows the system's palette by itself."""

    def drawing(found: re.Match[str]) -> str:
        alt, name = found[1], found[2]
        drawn = (page.parent / f"{name}.svg").read_text(encoding="utf-8")
        if not _DARK_ONLY.search(drawn):
            return found[0]
        for palette, media in (("light", "@media not all"), ("dark", "@media all")):
            (page.parent / f"{name}.{palette}.svg").write_text(_DARK_ONLY.sub(media, drawn), encoding="utf-8")
        return _pair(alt, f"{name}.light.svg", f"{name}.dark.svg")

    text = _PICTURE.sub(lambda found: _pair(found[2], found[3], found[1]), text)
    return _FIGURE.sub(drawing, text)


def _pair(alt: str, light: str, dark: str) -> str:
    return f"![{alt}]({light}#only-light)\n![{alt}]({dark}#only-dark)"


def list_versions(site: Path) -> list[str]:
    """Write what the switch between versions reads, and a page that leads to the newest; return all versions,
    the newest first."""
    found = [each.name for each in site.iterdir() if each.is_dir() and re.match(r"\d+\.\d+", each.name)]
    versions = sorted(found, key=_order, reverse=True)
    listed = [
        {"version": each, "title": each, "aliases": ["latest"] if each == versions[0] else []}
        for each in versions
    ]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    (site / "index.html").write_text(
        f'<!doctype html><title>slipring</title><meta http-equiv="refresh" content="0; url={versions[0]}/">'
        f'<a href="{versions[0]}/">slipring {versions[0]}</a>\n',
        encoding="utf-8",
    )
    return versions


def _order(version: str) -> tuple[list[int], bool, list[int]]:
    """By which versions are sorted: ``1.0.0rc1`` comes before ``1.0.0``."""
    release, _, candidate = version.partition("rc")
    return [int(number) for number in re.findall(r"\d+", release)], not candidate, [int(candidate or 0)]


def _version() -> str:
    text = (ROOT / "src" / "slipring" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = _version()
    files = settings["tool"]["slipring"]["files"].format(version=version)
    config = prepare(settings["project"]["urls"], files, version)
    generator = Path(sys.executable).with_name("zensical")
    done = subprocess.run([str(generator), "build", "--strict", "--clean", "-f", str(config)], check=False)
    if done.returncode == 0:
        versions = list_versions(BUILD / "site")
        print(f"the site is in build/site, with {', '.join(versions)}: python -m http.server -d build/site")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
