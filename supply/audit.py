"""`make audit`: looks every locked package up in advisories.

With ``--advisories``, a file, directory or zip archive of records in the OSV format is read, and nothing is
requested from anywhere. Without it, pip-audit asks the package index. Exit codes: 0, no known vulnerability;
1, some are known; 2, the advisories cannot be read; 3, the index has no advisories, or cannot be reached, so
nothing is known.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from supply.locked import Package, read_lock

LOCKS = ("build.txt", "container.txt", "dev.txt", "extras.txt", "model.txt", "run.txt", "vocabulary.txt")
CLEAN, VULNERABLE, UNREADABLE, UNREACHABLE = range(4)
Json = dict[str, Any]


class AdvisoriesUnreadable(Exception):
    """There are no advisories in what was named, or they are not in the OSV format."""


@dataclass(frozen=True)
class Finding:
    """A known vulnerability of a locked package."""

    package: Package
    advisory: str
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        mended = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no version is known to be without it"
        return f"{self.package.name} {self.package.version}: {self.advisory} ({mended})"


def locked_packages() -> list[Package]:
    """The packages of all lock files, each once."""
    packages = {each.purl: each for name in LOCKS for each in read_lock(name)}
    return [packages[purl] for purl in sorted(packages)]


# Advisories in files.


def read_advisories(path: Path) -> list[Json]:
    """The records in a JSON file, in the JSON files below a directory, or in a zip archive of them.

    Raises ``AdvisoriesUnreadable``.
    """
    try:
        records = [record for text in _texts(path) for record in _records(json.loads(text))]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise AdvisoriesUnreadable(f"{path}: {error}") from None
    if not records:
        raise AdvisoriesUnreadable(f"{path}: no advisories are there")
    return records


def _texts(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        yield from (file.read_bytes() for file in sorted(path.rglob("*.json")))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in sorted(archive.namelist()) if name.endswith(".json"))
    else:
        yield path.read_bytes()


def _records(found: Any) -> Iterator[Json]:
    for record in found if isinstance(found, list) else [found]:
        if not isinstance(record, dict) or "id" not in record:
            raise ValueError("a record without an id is not in the OSV format")
        yield record


def find(packages: Iterable[Package], advisories: Iterable[Json]) -> list[Finding]:
    """The advisories that apply to locked packages. Withdrawn ones do not."""
    by_name: dict[str, list[Package]] = {}
    for package in packages:
        by_name.setdefault(canonicalize_name(package.name), []).append(package)
    findings = []
    for advisory in advisories:
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", ()):
            about = affected.get("package", {})
            if about.get("ecosystem") != "PyPI":
                continue
            findings += [
                Finding(package, advisory["id"], tuple(_fixes(affected)))
                for package in by_name.get(canonicalize_name(about.get("name", "")), ())
                if _is_affected(package.version, affected)
            ]
    return findings


def _is_affected(version: str, affected: Json) -> bool:
    """Whether a version is listed, or in one of the ranges."""
    if version in affected.get("versions", ()):
        return True
    ranges = [each for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM"]
    return any(_is_in(Version(version), each.get("events", ())) for each in ranges)


def _is_in(version: Version, events: Iterable[dict[str, str]]) -> bool:
    """Whether the last event up to a version says that it is affected."""
    is_in = False
    for event in sorted(events, key=_place):
        ((kind, text),) = event.items()
        if kind == "introduced" and version >= _version(text):
            is_in = True
        elif (kind == "fixed" and version >= _version(text)) or (
            kind == "last_affected" and version > _version(text)
        ):
            is_in = False
    return is_in


def _place(event: dict[str, str]) -> tuple[Version, bool]:
    ((kind, text),) = event.items()
    return _version(text), kind == "last_affected"


def _version(text: str) -> Version:
    """A version of an advisory. ``0`` is before all others, and one that no rule can read is after them."""
    try:
        return Version("0.dev0" if text == "0" else text)
    except InvalidVersion:
        return Version("999999!0")


def _fixes(affected: Json) -> Iterator[str]:
    for each in affected.get("ranges", ()):
        if each.get("type") == "ECOSYSTEM":
            yield from (event["fixed"] for event in each.get("events", ()) if "fixed" in event)


# Advisories of the package index.


def ask_the_index(tool: Path, packages: list[Package]) -> int:
    """Let pip-audit ask the index about all packages; print what it says. Returns the exit code.

    pip-audit takes a package of which the index knows nothing for one without vulnerabilities; here it is one
    of which nothing is known.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.writelines(f"{package.name}=={package.version}\n" for package in packages)
        listed.flush()
        flags = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")
        done = subprocess.run(
            (str(tool), *flags, "--requirement", listed.name), capture_output=True, text=True, check=False
        )
    try:
        asked = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return _say_unreachable(done.stderr.strip().splitlines()[-1:] or ["pip-audit printed nothing"])
    unknown = [each["name"] for each in asked if "skip_reason" in each]
    findings = [(each, one) for each in asked for one in each.get("vulns", ())]
    for each, one in findings:
        fixed = ", ".join(one["fix_versions"]) or "no version"
        print(f"{each['name']} {each['version']}: {one['id']} (fixed in {fixed})")
    if findings:
        return VULNERABLE
    if unknown or not asked:
        return _say_unreachable([f"it knows nothing of {len(unknown)} of {len(asked)} packages"])
    print(f"no known vulnerability in {len(asked)} packages")
    return CLEAN


def _say_unreachable(reason: list[str]) -> int:
    print(
        f"make audit: the index's advisories cannot be read: {reason[0]}\n"
        "Nothing is known about these versions. With a copy of the advisories (OSV's export for PyPI):\n"
        "  make audit ADVISORIES=all.zip",
        file=sys.stderr,
    )
    return UNREACHABLE


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--advisories", type=Path, help="OSV records: a file, a directory or a zip archive")
    parser.add_argument("--tool", type=Path, help="the pip-audit that asks the index without --advisories")
    chosen = parser.parse_args(arguments)
    packages = locked_packages()
    if chosen.advisories is None:
        return ask_the_index(chosen.tool, packages)
    try:
        advisories = read_advisories(chosen.advisories)
    except AdvisoriesUnreadable as error:
        print(f"make audit: {error}", file=sys.stderr)
        return UNREADABLE
    findings = find(packages, advisories)
    for finding in findings:
        print(finding)
    if findings:
        return VULNERABLE
    print(f"no known vulnerability in {len(packages)} packages, by {len(advisories)} advisories")
    return CLEAN


if __name__ == "__main__":
    sys.exit(main())
