"""The wheel as users get it: what ``make package`` checks, as far as it needs no index."""

import subprocess
import sys
from pathlib import Path

import pytest

from supply.package import CheckFailed, check_turn

EXTRAS = (
    *("asyncpg", "huggingface_hub", "jinja2", "minijinja", "numpy", "opentelemetry", "presidio_analyzer"),
    *("quickjs", "tokenizers", "xllamacpp"),
)
"""What only extras install."""
WITHOUT_EXTRAS = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
RUN = "from slipring.__main__ import run; sys.exit(run())\n"


def test_without_extras_it_serves_in_front_of_a_chat_server(tmp_path: Path) -> None:
    program = tmp_path / "slipring.py"
    program.write_text(f"import sys; sys.path.pop(0)\n{WITHOUT_EXTRAS}{RUN}")
    check_turn([sys.executable, str(program)])


def test_without_extras_the_simulated_engine_serves(tmp_path: Path) -> None:
    program = tmp_path / "simulated.py"
    opened = "open_engine('simulated:tokens_per_s=0').models()[0].name"
    program.write_text(f"{WITHOUT_EXTRAS}from slipring.engines.catalog import open_engine; print({opened})\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("simulated\n", "")


def test_a_server_that_does_not_start_is_found() -> None:
    with pytest.raises(CheckFailed, match="slipring ended with code 7"):
        check_turn([sys.executable, "-c", "raise SystemExit(7)"])
