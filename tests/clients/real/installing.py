"""Installs clients as their users do: pinned packages of npm and PyPI, each client in its own directory.

Everything is below one directory that git ignores. Packages that are there at the pinned versions are not
installed again. A client that cannot be installed is skipped.
"""

import json
import platform
import shutil
import subprocess
import sys
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

_PINS = Path(__file__).with_name("versions.toml")
_DRIVERS = Path(__file__).with_name("drivers")
_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_PATIENCE_S = 1800
_NPM_FLAGS = ("--no-audit", "--no-fund", "--ignore-scripts", "--save-exact", "--loglevel=error")


class CannotInstall(Exception):
    """A client, or one of its dependencies, cannot be installed. The message gives the reason."""


def pins() -> dict[str, Any]:
    """Read ``versions.toml``, with the package names for this platform."""
    arch = _ARCHITECTURES.get(platform.machine(), platform.machine())
    return tomllib.loads(_PINS.read_text(encoding="utf-8").replace("{arch}", arch))


class Workshop:
    """The directory that clients are installed in."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._pins = pins()

    def install(self, name: str) -> Path:
        """Install the packages of a client, unless they are there; return their directory."""
        directory = self.root / name
        wanted = json.dumps(self._pins[name], sort_keys=True)
        stamp = directory / ".installed"
        if stamp.exists() and stamp.read_text() == wanted:
            return directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for kind, packages in self._pins[name].items():
            (self._by_npm if kind == "npm" else self._by_pip)(directory, packages)
        stamp.write_text(wanted)
        return directory

    def version(self, name: str) -> str:
        """Return the version of a client's first package."""
        return next(iter(next(iter(self._pins[name].values())).values()))

    def package(self, name: str) -> Path:
        """Return the directory of a client's first npm package."""
        return self.root / name / "node_modules" / next(iter(self._pins[name]["npm"]))

    def python(self, name: str) -> Path:
        """Return the interpreter that has a client's PyPI packages."""
        return self.root / name / "venv" / "bin" / "python"

    def driver(self, name: str, file: str | Path) -> Path:
        """Copy a driver, or another file, beside the packages that it imports, where Node looks for them;
        return its path."""
        source = _DRIVERS / file
        return Path(shutil.copy(source, self.root / name / source.name))

    @cached_property
    def node(self) -> Path:
        """Return a Node that is new enough for all clients, installed here."""
        self.install("node")
        return self.package("node") / "bin" / "node"

    @cached_property
    def _npm(self) -> tuple[str, ...]:
        if found := shutil.which("npm"):
            return (found,)
        self.install("npm")
        return (str(self.python("npm").with_name("npm")),)

    def _by_npm(self, directory: Path, packages: dict[str, str]) -> None:
        (directory / "package.json").write_text('{"private": true, "type": "module"}')
        wanted = [f"{package}@{version}" for package, version in packages.items()]
        _do(*self._npm, "install", "--prefix", str(directory), *_NPM_FLAGS, *wanted)

    def _by_pip(self, directory: Path, packages: dict[str, str]) -> None:
        _do(sys.executable, "-m", "venv", str(directory / "venv"))
        python = str(directory / "venv" / "bin" / "python")
        wanted = [f"{package}=={version}" for package, version in packages.items()]
        _do(python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *wanted)


def _do(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise CannotInstall(str(failure)) from None
    if done.returncode:
        complaints = [line.strip() for line in done.stderr.splitlines() if "rror" in line]
        raise CannotInstall(complaints[0] if complaints else f"{command[0]} ended with {done.returncode}")
