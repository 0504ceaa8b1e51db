"""`make fuzz`: sends requests that Schemathesis generates from the OpenAPI document to a real server.

The exit code is not 0 if a fault was found: a server error, a status or body that the document does not
describe, or a request that the document forbids but the server accepts. Schemathesis is installed in a
separate environment.
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
"""Without the check that the server accepts every request that the document allows: a schema cannot express,
for example, that every call has its output."""
_PATIENCE_S = 60


def _print(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _server(log: Path) -> Iterator[str]:
    """Run a server on a memory store; yield its root URL. Its log is kept."""
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
    """Run Schemathesis; return whether it found no fault."""
    command = [
        *(str(tools / "schemathesis"), "run", str(document)),
        *("--url", root, "--header", f"Authorization: Bearer {_KEY}"),
        *("--checks", ",".join(_CHECKS), "--max-time", str(seconds), "--seed", str(seed)),
        *("--request-timeout", "20", "--generation-database", "none", "--continue-on-failure", "--no-color"),
    ]
    return subprocess.run(command, check=False, cwd=document.parent).returncode == 0


def _focused(document: bytes) -> bytes:
    """Return the document without fields that are always refused, because they would mask other faults."""
    described = json.loads(document)
    schemas = described["components"]["schemas"]
    schemas["CreateRequest"]["properties"] |= {
        "model": {"enum": [_MODEL, None]},
        **{name: {"type": "null"} for name in ("stream_id", "prompt", "moderation")},
    }
    schemas["CompactRequest"]["properties"]["model"] = {"const": _MODEL}
    return json.dumps(described).encode()


def _is_healthy(root: str) -> bool:
    with urllib.request.urlopen(f"{root}/health", timeout=_PATIENCE_S) as answer:
        return bool(answer.status == 200)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="directory of the other tools' commands")
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
        _print(f"seed {arguments.seed}, {arguments.seconds} s")
        with _server(log) as root:
            found_nothing = _fuzz(tools, document, root, arguments.seconds, arguments.seed)
            is_healthy = _is_healthy(root)
        logged = log.read_text()
    _print(f"the server is {'healthy' if is_healthy else 'not healthy'}; it logged:\n{logged or 'nothing'}")
    return 0 if found_nothing and is_healthy and not logged else 1


if __name__ == "__main__":
    sys.exit(main())
