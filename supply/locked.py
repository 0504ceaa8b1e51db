"""Reads the lock files: pip's requirement files with one exact version and all hashes for every package."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "supply" / "lock"
PROJECT = "slipring"
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>\S+)( ; (?P<marker>.*?))?( \\)?")
_HASH = re.compile(r"\s+--hash=(?P<hash>sha256:[0-9a-f]{64})( \\)?")
_VIA = re.compile(r"\s+#( via)?\s+(?P<parent>\S.*)")


def version() -> str:
    """The version of this source tree, read without importing it."""
    text = (ROOT / "src" / PROJECT / "__init__.py").read_text(encoding="utf-8")
    return str(re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0])


class Unlocked(Exception):
    """A line of a lock file is not an exact version, a hash or a comment."""


@dataclass(frozen=True)
class Package:
    """A package at one version."""

    name: str
    version: str
    marker: str
    """The platforms and Pythons for which it is installed; empty: all."""
    hashes: tuple[str, ...]
    parents: tuple[str, ...]
    """The packages that require it."""

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def read_lock(name: str) -> list[Package]:
    """The packages of a lock file. Raises ``Unlocked`` for a line that pins nothing."""
    text = (LOCK / name).read_text(encoding="utf-8")
    return [_read(block) for block in _blocks(text)]


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines of each package: a pin, its hashes, and who requires it."""
    block: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace() and block:
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _read(block: list[str]) -> Package:
    pin = _PIN.fullmatch(block[0])
    if pin is None:
        raise Unlocked(block[0])
    hashes, parents = [], []
    for line in block[1:]:
        if found := _HASH.fullmatch(line):
            hashes.append(found["hash"])
        elif found := _VIA.fullmatch(line):
            if not found["parent"].startswith("-"):  # a file that names it
                parents.append(found["parent"])
        elif line.strip() != "# via":
            raise Unlocked(line)
    return Package(
        name=pin["name"],
        version=pin["version"],
        marker=pin["marker"] or "",
        hashes=tuple(hashes),
        parents=tuple(PROJECT if parent.startswith(f"{PROJECT} (") else parent for parent in parents),
    )
