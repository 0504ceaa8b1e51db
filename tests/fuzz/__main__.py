"""`make fuzz`: sends requests that Schemathesis generates from the OpenAPI document to a real server.

The exit code is not 0 if a fault was found: a server error, a status or body that the document does not
describe, an answer of Messages or Chat Completions that is not valid by the types of its API's package, or a
request that the document forbids but the server accepts. Schemathesis is installed in a separate environment.
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
from urllib.parse import urlsplit

from tests import api_answers
from tests.fuzz.frames import api_seeds

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
_PATIENCE_S = 300.0
_ANSWERS = "answers.har"
_HISTORIES = {
    "ChatRequest": [body["messages"] for body in api_seeds.CHAT],
    "MessagesRequest": [body["messages"] for body in api_seeds.MESSAGES],
    "CountRequest": [body["messages"] for body in api_seeds.MESSAGES],
}
"""Messages that are served. Few that are generated have a result for every call."""


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


def _fuzz(tools: Path, document: Path, root: str, arguments: argparse.Namespace) -> bool:
    """Run Schemathesis; return whether it found no fault. The answers are in a file beside the document."""
    chosen = ("--include-path-regex", arguments.only) if arguments.only else ()
    command = [
        *(str(tools / "schemathesis"), "run", str(document)),
        *("--url", root, "--header", f"Authorization: Bearer {_KEY}"),
        *("--checks", ",".join(_CHECKS), "--max-time", str(arguments.seconds), "--seed", str(arguments.seed)),
        *("--request-timeout", "20", "--generation-database", "none", "--continue-on-failure", "--no-color"),
        *("--report", "har", "--report-har-path", str(document.parent / _ANSWERS), *chosen),
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
    for name in ("CompactRequest", "ChatRequest", "MessagesRequest", "CountRequest"):
        schemas[name]["properties"]["model"] = {"const": _MODEL}
    schemas["ChatRequest"]["properties"]["moderation"] = {"type": "null"}
    for name, histories in _HISTORIES.items():
        properties = schemas[name]["properties"]
        properties["messages"] = {"anyOf": [{"enum": histories}, properties["messages"]]}
    for name in ("MessagesRequest", "CountRequest"):
        schemas[name]["properties"] |= {
            "context_management": {"type": "null"},
            "mcp_servers": {"type": "null"},
        }
    schemas["OutputConfig"]["properties"]["task_budget"] = {"type": "null"}
    return json.dumps(described).encode()


def _faults_in(answers: Path) -> tuple[int, int, list[str]]:
    """Count the answers of Messages and Chat Completions, and those with 200; find what is wrong with them
    by the types of the APIs' packages."""
    entries = json.loads(answers.read_bytes())["log"]["entries"]
    checked = served = 0
    faults = []
    for entry in entries:
        path, answer = urlsplit(entry["request"]["url"]).path, entry["response"]
        if not api_answers.is_translated(path) or entry["request"]["method"] != "POST":
            continue
        checked += 1
        served += answer["status"] == 200
        content, body = answer["content"], answer["content"].get("text", "").encode()
        try:
            api_answers.check(path, answer["status"], content["mimeType"].partition(";")[0], body)
        except (AssertionError, ValueError, KeyError) as error:
            faults.append(
                f"{path}: {answer['status']}: {error}\n{entry['request'].get('postData')}\n{body[:600]!r}"
            )
    return checked, served, faults


def _is_healthy(root: str) -> bool:
    with urllib.request.urlopen(f"{root}/health", timeout=_PATIENCE_S) as answer:
        return bool(answer.status == 200)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="directory of the other tools' commands")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", help="a pattern of the paths that requests are sent to")
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
            found_nothing = _fuzz(tools, document, root, arguments)
            is_healthy = _is_healthy(root)
        logged = log.read_text()
        checked, served, faults = _faults_in(document.parent / _ANSWERS)
    _print(f"answers of Messages and Chat Completions: {checked}, {served} with 200, {len(faults)} not valid")
    for fault in faults[:10]:
        _print(fault)
    _print(f"the server is {'healthy' if is_healthy else 'not healthy'}; it logged:\n{logged or 'nothing'}")
    return 0 if found_nothing and is_healthy and not logged and not faults else 1


if __name__ == "__main__":
    sys.exit(main())
