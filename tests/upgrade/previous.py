"""Installs an earlier version of slipring from this repository's history, beside this one.

``PREVIOUS`` is the last commit with the first schema of the store and the first form of what nodes send each
other. The release 0.1.0 is older, and kept everything in memory: there is nothing of it to upgrade.
"""

import subprocess
import sys
import tarfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PREVIOUS = "e58813bb7006fdc5705aebd242299cceec5b156e"


class NotInstallable(Exception):
    """The earlier version is not in this clone, or cannot be installed. The message says what to do."""


def commit_of(name: str) -> str:
    """The id of the commit that ``name`` names. Raises ``NotInstallable`` if the clone does not have it."""
    asked = ("git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}")
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return found.stdout.strip()
    inside = ("git", "rev-parse", "--is-shallow-repository")
    kind = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, check=False)
    if kind.returncode != 0:
        raise NotInstallable("the upgrade is tested in a clone of the repository: this is not one")
    if kind.stdout.strip() == "true":
        raise NotInstallable(f"this clone is shallow and lacks {name}: git fetch --unshallow")
    raise NotInstallable(f"this clone has no commit {name}: git fetch --all")


def install(name: str, directory: Path) -> Path:
    """Install the version at a commit into ``directory``, once; return its Python."""
    commit = commit_of(name)
    target = directory / commit[:12]
    python = target / "bin" / "python"
    if (target / ".ready").exists():
        return python
    print(f"installing {commit[:12]} into {target} …", flush=True)
    source = target / "source"
    source.mkdir(parents=True, exist_ok=True)
    archive = target / "source.tar"
    subprocess.run(("git", "archive", f"--output={archive}", commit), cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    venv.create(target, with_pip=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = subprocess.run((*pip, f"{source}[tokens,postgres]"), check=False)
    if done.returncode != 0:
        raise NotInstallable(f"pip could not install {commit[:12]}, see above")
    (target / ".ready").touch()
    return python


def command(python: Path) -> tuple[str, ...]:
    return (str(python), "-m", "slipring")


THIS = (sys.executable, "-m", "slipring")
