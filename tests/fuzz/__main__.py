"""`make fuzz`: a real server, and requests that Schemathesis makes from its own OpenAPI document.

The exit code says whether anything was found: a fault of ours, a status or a body that the document does not
describe, a request that it forbids and the server served. Schemathesis lives in an environment of its own.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KEY = "fuzz"
_MODEL = "simulated"
_ENGINE = "simulated:tokens_per_s=0,output_tokens=5"
_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ensure_resource_availability",
)
"""Not that what the document allows is served: whether a call has its output is no question of schemas."""
_PATIENCE_S = 60


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _server(log: Path) -> Iterator[str]:
    """A server with nothing to lose; its root. What it logs is kept."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}
    command = [sys.executable, "-m", "slipring", "serve", "--port", "0", "--log-level", "warning"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--store", "memory", "--engine", _ENGINE],
            env={**environ, "SLIPRING_API_KEYS": _KEY},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1].removesuffix("/v1")
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)


def _fuzz(tools: Path, document: Path, root: str, seconds: int, seed: int) -> bool:
    """Whether nothing was found."""
    command = [
        *(str(tools / "schemathesis"), "run", str(document)),
        *("--url", root, "--header", f"Authorization: Bearer {_KEY}"),
        *("--checks", ",".join(_CHECKS), "--max-time", str(seconds), "--seed", str(seed)),
        *("--request-timeout", "20", "--generation-database", "none", "--continue-on-failure", "--no-color"),
    ]
    return subprocess.run(command, check=False, cwd=document.parent).returncode == 0


def _focused(document: bytes) -> bytes:
    """The document without what is refused whatever else is said: nothing would be learned behind it."""
    described = json.loads(document)
    schemas = described["components"]["schemas"]
    schemas["CreateRequest"]["properties"] |= {
        "model": {"enum": [_MODEL, None]},
        **{name: {"type": "null"} for name in ("stream_id", "prompt", "moderation")},
    }
    schemas["CompactRequest"]["properties"]["model"] = {"const": _MODEL}
    return json.dumps(described).encode()


def _is_well(root: str) -> bool:
    with urllib.request.urlopen(f"{root}/health", timeout=_PATIENCE_S) as answer:
        return bool(answer.status == 200)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="where the commands of the other tools are")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    tools = arguments.tools.absolute()
    with tempfile.TemporaryDirectory() as directory:
        document, log = Path(directory) / "openapi.json", Path(directory) / "log"
        printed = subprocess.run([sys.executable, "-m", "slipring", "openapi"], check=True, stdout=-1).stdout
        document.write_bytes(printed)
        subprocess.run([str(tools / "openapi-spec-validator"), str(document)], check=True)
        document.write_bytes(_focused(printed))
        _say(f"seed {arguments.seed}, {arguments.seconds} s")
        with _server(log) as root:
            found_nothing = _fuzz(tools, document, root, arguments.seconds, arguments.seed)
            is_well = _is_well(root)
        logged = log.read_text()
    _say(f"the server is {'well' if is_well else 'not well'}; it logged:\n{logged or 'nothing'}")
    return 0 if found_nothing and is_well and not logged else 1


if __name__ == "__main__":
    sys.exit(main())
