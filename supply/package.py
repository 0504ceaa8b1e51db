"""Builds wheel and sdist, and checks them as users get them: ``make package``.

- The sdist builds the same wheel, byte for byte.
- Metadata and contents pass twine and check-wheel-contents.
- Installed without extras, on every Python from 3.11 that is found here, by ``uvx`` and by ``pipx``, slipring
  answers in front of a chat server.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from supply.chat_server import ANSWER, chat_server
from supply.locked import ROOT

DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_URL = re.compile(r"serves (http://\S+)")


class CheckFailed(Exception):
    """What is wrong with the package."""


def build() -> tuple[Path, Path]:
    """Build wheel and sdist into an empty ``dist``. Returns their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "hatchling", "build", "--directory", str(DIST))
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def check_sdist(wheel: Path, sdist: Path) -> None:
    """Build the wheel again, from the sdist. Raises ``CheckFailed`` if it differs."""
    with tempfile.TemporaryDirectory() as place, tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
        (tree,) = Path(place).iterdir()
        _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place, at=tree)
        (again,) = Path(place).glob("*.whl")
        if (again.name, again.read_bytes()) != (wheel.name, wheel.read_bytes()):
            raise CheckFailed(f"the sdist builds another {wheel.name}")


def check_turn(command: Sequence[str]) -> None:
    """Serve in front of a chat server, and get an answer. ``command`` starts slipring. Raises
    ``CheckFailed``."""
    with chat_server() as engine, _serving(command, engine) as url:
        body = json.dumps({"input": "Hello"}).encode()
        request = urllib.request.Request(f"{url}/responses", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            response = json.load(answer)
    said = [part["text"] for item in response["output"] for part in item.get("content", ())]
    if said != [ANSWER]:
        raise CheckFailed(f"answered {said} instead of {ANSWER!r}")


@contextmanager
def _serving(command: Sequence[str], engine: str) -> Iterator[str]:
    """The address of a server that runs until the end of the block."""
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [*command, "serve", "--engine", f"chat:{engine}", "--port", "0", "--store", "memory"],
            env={**os.environ, "SLIPRING_ADMIN": "off", "SLIPRING_LOG_LEVEL": "warning"},
            cwd=home,  # where no source is found
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            found = next((match for line in process.stdout if (match := _URL.search(line))), None)
            if found is None:
                raise CheckFailed(f"{command[0]}: slipring ended with code {process.wait()}")
            yield found[1]
        finally:
            process.terminate()
            process.communicate()


def _run(*command: str, at: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=at, capture_output=True, text=True)
    if done.returncode:
        raise CheckFailed(
            f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def _runs(python: str) -> bool:
    """Whether there is such an interpreter: what a version manager puts on the path may lead nowhere."""
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0


def _check_installed(wheel: Path, tools: Path) -> None:
    """Install the wheel for every Python that is found, and by the programs that run applications."""
    uv = str(tools / "uv")
    for version in PYTHONS:
        if not _runs(f"python{version}"):
            print(f"  Python {version}: not found here, not checked")
            continue
        with tempfile.TemporaryDirectory() as place:
            python = f"{place}/bin/python"
            _run(uv, "venv", "--quiet", "--no-python-downloads", "--python", version, place)
            _run(uv, "pip", "install", "--quiet", "--python", python, str(wheel))
            check_turn([f"{place}/bin/slipring"])
        print(f"  Python {version}: installed without extras, answers")
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(PIPX_HOME=f"{place}/pipx", PIPX_BIN_DIR=f"{place}/bin")
        check_turn([str(tools / "uvx"), "--quiet", "--from", str(wheel), "slipring"])
        print("  uvx: answers")
        check_turn([str(tools / "pipx"), "run", "--spec", str(wheel), "slipring"])
        print("  pipx: answers")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m supply.package", description="Build and check wheel and sdist."
    )
    parser.add_argument(
        "--tools", type=Path, required=True, help="the directory of uv, pipx, twine and others"
    )
    tools = parser.parse_args().tools.absolute()
    try:
        wheel, sdist = build()
        print(f"  {wheel.name}, {sdist.name}: built")
        check_sdist(wheel, sdist)
        print("  the sdist builds the same wheel")
        _run(str(tools / "twine"), "check", "--strict", str(wheel), str(sdist))
        _run(str(tools / "check-wheel-contents"), str(wheel))
        print("  metadata and contents: nothing to complain about")
        _check_installed(wheel, tools)
    except CheckFailed as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
