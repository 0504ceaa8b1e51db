"""The parts of a release that a program can do, which ``make release`` runs; docs/releasing.md has the rest.

python -m supply.release version 1.0.0rc1    writes the version everywhere, and dates the changelog
python -m supply.release check               is this tree one to release?
python -m supply.release artefacts           what is published beside wheel and sdist, into dist
"""

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from supply.bill_of_materials import PATH as BILL
from supply.bill_of_materials import bill_of_materials, encode
from supply.locked import PROJECT, ROOT, version
from supply.package import DIST
from supply.readme import published

VERSION_FILE = ROOT / "src" / "slipring" / "__init__.py"
CHANGELOG = ROOT / "CHANGELOG.md"
NAMED_IN = (
    "deploy/compose/compose.yaml",
    "deploy/kubernetes/slipring.yaml",
    "deploy/kubernetes/kustomization.yaml",
)
"""Files that name the version of an image."""
_FORM = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_HEADING = re.compile(r"^## \[(?P<version>[^]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


class NotReady(Exception):
    """Why this tree is none to release."""


def changes_of(text: str, wanted: str) -> tuple[str, str]:
    """The date and the text of a version's section in a changelog. Raises ``NotReady``."""
    headings = list(_HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=False):
        if heading["version"] == wanted:
            end = following.start() if following is not None else len(text)
            return heading["date"] or "", text[heading.end() : end].strip()
    raise NotReady(f"CHANGELOG.md has no section [{wanted}]")


def problems() -> list[str]:
    """What speaks against a release of this tree."""
    found = []
    now = version()
    try:
        date, changes = changes_of(CHANGELOG.read_text(encoding="utf-8"), now)
        found += [] if date else [f"CHANGELOG.md: [{now}] has no date"]
        found += [] if changes else [f"CHANGELOG.md: [{now}] is empty"]
        _, unreleased = changes_of(CHANGELOG.read_text(encoding="utf-8"), "Unreleased")
        found += [f"CHANGELOG.md: [Unreleased] has changes that belong to [{now}]"] if unreleased else []
    except NotReady as error:
        found.append(str(error))
    found += [f"{name} does not name {now}" for name in NAMED_IN if now not in (ROOT / name).read_text()]
    if BILL.read_text(encoding="utf-8") != encode(bill_of_materials()):
        found.append(f"{BILL.relative_to(ROOT)} is not that of this tree: make lock")
    if ".example" in (ROOT / "pyproject.toml").read_text():
        found.append("pyproject.toml: [project.urls] and [tool.slipring] have placeholders")
    if _git("status", "--porcelain"):
        found.append("the tree has changes that are not committed")
    return found


def set_version(new: str, today: str) -> None:
    """Write a version wherever it stands, and name the changelog's unreleased section after it."""
    if not _FORM.fullmatch(new):
        raise NotReady(f"{new} is no version such as 1.0.0 or 1.0.0rc1")
    old = version()
    _replace(VERSION_FILE, f'__version__ = "{old}"', f'__version__ = "{new}"')
    for name in NAMED_IN:
        _replace(ROOT / name, old, new)
    text = CHANGELOG.read_text(encoding="utf-8")
    _, unreleased = changes_of(text, "Unreleased")
    if unreleased:
        text = text.replace("## [Unreleased]", f"## [Unreleased]\n\n## [{new}] - {today}", 1)
    else:  # what was last named has not been published
        text = _HEADING.sub(lambda heading: _dated(heading, old, f"## [{new}] - {today}"), text)
    CHANGELOG.write_text(text, encoding="utf-8")
    BILL.write_text(encode(bill_of_materials()), encoding="utf-8")


def _dated(heading: re.Match[str], old: str, new: str) -> str:
    return new if heading["version"] == old and not heading["date"] else heading[0]


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise NotReady(f"{path.relative_to(ROOT)} does not have {old}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def write_artefacts(tools: Path) -> list[Path]:
    """Write what is published beside wheel and sdist: the changes, the bill of what an installation contains,
    the statement of provenance, and the hashes of all. Returns their paths."""
    built = sorted((*DIST.glob(f"{PROJECT}-*.whl"), *DIST.glob(f"{PROJECT}-*.tar.gz")))
    if len(built) != 2:
        raise NotReady("dist does not have one wheel and one sdist: make package")
    _, changes = changes_of(CHANGELOG.read_text(encoding="utf-8"), version())
    notes = DIST / "CHANGES.md"
    notes.write_text(published(f"# slipring {version()}\n\n{changes}\n", ROOT), encoding="utf-8")
    bill = DIST / f"{PROJECT}-{version()}.cdx.json"
    _write_bill(next(path for path in built if path.suffix == ".whl"), bill, tools)
    provenance = DIST / f"{PROJECT}-{version()}.provenance.json"
    provenance.write_text(json.dumps(statement(built), indent=1) + "\n", encoding="utf-8")
    files = [*built, bill, provenance, notes]
    sums = DIST / "SHA256SUMS"
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    return [*files, sums]


def _write_bill(wheel: Path, bill: Path, tools: Path) -> None:
    """List what a clean installation with all extras contains."""
    extras = ROOT / "supply" / "lock" / "extras.txt"
    with tempfile.TemporaryDirectory() as place:
        uv = str(tools / "uv")
        _do(uv, "venv", "--quiet", "--python", sys.executable, place)
        install = (uv, "pip", "install", "--quiet", "--python", f"{place}/bin/python")
        _do(*install, "--require-hashes", "--requirement", str(extras))
        _do(*install, "--no-deps", str(wheel))
        _do(
            *(str(tools / "cyclonedx-py"), "environment", "--output-reproducible", "--spec-version", "1.6"),
            *("--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(bill), f"{place}/bin/python"),
        )
    bill.write_text(named(bill.read_text(encoding="utf-8")), encoding="utf-8")


def named(bill: str) -> str:
    """A bill that says of which version it is, which pyproject.toml does not."""
    found = json.loads(bill)
    own = found["metadata"]["component"]
    own |= {"version": version(), "purl": f"pkg:pypi/{PROJECT}@{version()}"}
    return json.dumps(found, indent=1) + "\n"


def statement(files: list[Path]) -> dict[str, Any]:
    """An in-toto statement of how files were built, after SLSA 1.0. It proves something only once it is
    signed by who runs the build."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://slipring.example/build/make-package",
                "externalParameters": {"command": "make package", "version": version()},
                "resolvedDependencies": [
                    {
                        "uri": "git+https://slipring.example/source",
                        "digest": {"gitCommit": _git("rev-parse", "HEAD")},
                    },
                    *(
                        {"uri": f"file:{path.relative_to(ROOT)}", "digest": {"sha256": _sha256(path)}}
                        for path in (
                            ROOT / "supply" / "lock" / "build.txt",
                            ROOT / "supply" / "lock" / "extras.txt",
                        )
                    ),
                ],
            },
            "runDetails": {"builder": {"id": "https://slipring.example/build/by-hand"}},
        },
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotReady(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m supply.release", description="Prepare a release.")
    commands = parser.add_subparsers(dest="command", required=True)
    named = commands.add_parser("version", help="write a version everywhere, and date the changelog")
    named.add_argument("new")
    commands.add_parser("check", help="say what speaks against a release of this tree")
    made = commands.add_parser("artefacts", help="write what is published beside wheel and sdist")
    made.add_argument("--tools", type=Path, required=True, help="the directory of uv and cyclonedx-py")
    arguments = parser.parse_args()
    try:
        if arguments.command == "version":
            set_version(arguments.new, f"{datetime.date.today()}")
        elif arguments.command == "artefacts":
            for path in write_artefacts(arguments.tools.absolute()):
                print(f"  {path.relative_to(ROOT)}")
        elif found := problems():
            raise NotReady("\n".join(["not ready:", *(f"  {problem}" for problem in found)]))
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
