"""Installs the peers from the package index, each in its own virtual environment below ``.peers``.

    python benchmarks/peers/setup.py [--ogx-python python3.12]

A peer that is installed in the right version is left alone. ``.peers`` can be deleted at any time.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from servers import DIRECTORY, LITELLM, OGX, installed, ogx_config


def make(name: str, interpreter: str) -> Path:
    """Create an empty environment; return the path of its interpreter."""
    place = DIRECTORY / name
    subprocess.run([interpreter, "-m", "venv", "--clear", str(place)], check=True)
    return place / "bin" / "python"


def install(python: Path, *packages: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True)


def make_litellm() -> None:
    install(make("litellm", sys.executable), f"litellm[proxy]=={LITELLM}")


def make_ogx(interpreter: str) -> None:
    """Install OGX, then the packages that it lists for the providers of its configuration."""
    python = make("ogx", interpreter)
    install(python, f"ogx=={OGX}")
    config = ogx_config("http://127.0.0.1:8000/v1", 8321)
    command = [str(python.with_name("ogx")), "stack", "list-deps", str(config)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    install(python, *sorted(set(listed.splitlines()[-1].split())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    newer = next(filter(None, map(shutil.which, ("python3.12", "python3.13"))), None)
    parser.add_argument("--ogx-python", default=newer, help="an interpreter for OGX: 3.12 or later")
    given = parser.parse_args()
    DIRECTORY.mkdir(exist_ok=True)
    if installed("litellm") != LITELLM:
        print(f"LiteLLM {LITELLM} …", flush=True)
        make_litellm()
    if installed("ogx") != OGX or installed("sqlite-vec", "ogx") is None:
        if given.ogx_python is None:
            raise SystemExit("OGX needs Python 3.12 or later: name one with --ogx-python")
        print(f"OGX {OGX} …", flush=True)
        make_ogx(given.ogx_python)
    print(f"LiteLLM {installed('litellm')}, OGX {installed('ogx')}")


if __name__ == "__main__":
    main()
