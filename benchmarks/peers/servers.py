"""Starts the servers that are compared, in front of one upstream or one engine.

Each runs on the loopback interface, logs only errors, and is ended by its process id. Each is configured as
its documentation says for what stands behind it.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / ".peers"
UPSTREAM = ROOT / "benchmarks" / "instant_upstream.py"
LITELLM = "1.106.2"
OGX = "1.5.0"
VLLM = "0.32.0"
AGENTIC = "0.9.0"
MODEL = DIRECTORY / "model"
"""The tiny model in the form that vLLM reads."""
VLLM_PYTHON = DIRECTORY / "vllm" / "bin" / "python"
AGENTIC_PROGRAM = DIRECTORY / "agentic-api" / "bin" / "agentic-server"
GGUF = DIRECTORY / "tiny-Q8_0.gguf"
"""The tiny model that llama-server reads."""
CONTEXT = 65_536
LOOPS_AT_ONCE = 4
_CHILD = ROOT / "src" / "slipring" / "engines" / "llama" / "child_program.py"
_LITELLM_GUARDRAIL = """\
guardrails:
  - guardrail_name: moderation
    litellm_params:
      guardrail: openai_moderation
      mode: [during_call, post_call]
      api_key: none
      api_base: MODERATIONS
      default_on: true
"""
"""Its guardrail for a moderations API. ``during_call`` is its mode that runs beside the model."""
_START_TIMEOUT_S = 600
_STOP_TIMEOUT_S = 30


@dataclass
class Server:
    """A running server."""

    name: str
    url: str
    pid: int
    model: str
    key: str = "none"
    versions: dict[str, str] = field(default_factory=dict)
    behind: "Server | None" = None
    """The engine that it stands in front of, if that is a server, too."""
    files: Path = MODEL
    """Where the tokenizer of its model is."""


def installed(name: str, of: str = "") -> str | None:
    """Return the installed version of a peer, or of another package in its environment."""
    python = DIRECTORY / (of or name) / "bin" / "python"
    code = f"import importlib.metadata as it; print(it.version({name!r}))"
    if not python.exists():
        return None
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return answer.stdout.strip() or None


@contextmanager
def upstream(tokens_per_s: float, first_ms: float = 0.0) -> Iterator[str]:
    """Start the shared upstream, a Chat Completions server; yield its address."""
    port = free_port()
    command = [sys.executable, str(UPSTREAM), "--port", str(port), "--tokens-per-s", str(tokens_per_s)]
    command += ["--first-ms", str(first_ms)]
    with _running("upstream", command, f"http://127.0.0.1:{port}/v1/models"):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def slipring(
    upstream_url: str, *flags: str, engine: str = "chat:URL", moderations: str = ""
) -> Iterator[Server]:
    """``engine``: how it asks the upstream, whose address replaces ``URL``. ``moderations``, here and below:
    the base URL of the moderations API that inspects all that goes in and out, and may block it."""
    port, store = free_port(), _fresh("slipring.db")
    command = [
        *(sys.executable, "-m", "slipring", "serve", "--port", str(port), "--log-level", "error"),
        *("--store", f"sqlite:{store}", "--engine", engine.replace("URL", upstream_url), *flags),
    ]
    if moderations:
        config = _fresh("slipring.toml")
        config.write_text(
            '[[check]]\nname = "moderations"\nsource = "moderations"\naction = "block"\n'
            f'settings = {{ url = "{moderations}" }}\n'
        )
        command += ["--config", str(config)]
    name = f"slipring-{engine.partition(':')[0]}{'-checked' * bool(moderations)}"
    with _running(name, command, f"http://127.0.0.1:{port}/v1/models") as pid:
        yield Server("slipring", f"http://127.0.0.1:{port}/v1", pid, "instant")


@contextmanager
def litellm(upstream_url: str, moderations: str = "") -> Iterator[Server]:
    port, key = free_port(), f"sk-{secrets.token_hex(24)}"
    config = _fresh("litellm.yaml")
    config.write_text(
        "model_list:\n  - model_name: instant\n    litellm_params:\n      model: custom_openai/instant\n"
        f"      api_base: {upstream_url}\n      api_key: none\n"
        + (_LITELLM_GUARDRAIL.replace("MODERATIONS", moderations) if moderations else "")
    )
    command = [
        *(str(DIRECTORY / "litellm" / "bin" / "litellm"), "--config", str(config)),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"),
    ]
    env = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    with _running(
        f"litellm{'-checked' * bool(moderations)}",
        command,
        f"http://127.0.0.1:{port}/health/liveliness",
        **env,
    ) as pid:
        versions = {"litellm": installed("litellm") or ""}
        yield Server("litellm", f"http://127.0.0.1:{port}/v1", pid, "instant", key, versions)


@contextmanager
def ogx(upstream_url: str, moderations: str = "") -> Iterator[Server]:
    """OGX asks the moderations API only about requests with ``"guardrails": true``."""
    port = free_port()
    store = _fresh("ogx-store")
    store.mkdir()
    command = [
        str(DIRECTORY / "ogx" / "bin" / "ogx"),
        "run",
        str(ogx_config(upstream_url, port, moderations)),
        "--insecure",
    ]
    env = {"SQLITE_STORE_DIR": str(store), "OGX_LOGGING": "all=error"}
    # OGX downloads a vocabulary at startup. LiteLLM's wheel contains the same file.
    for place in DIRECTORY.glob("litellm/lib/python*/site-packages/litellm/litellm_core_utils/tokenizers"):
        env["TIKTOKEN_CACHE_DIR"] = str(place)
    with _running(
        f"ogx{'-checked' * bool(moderations)}", command, f"http://127.0.0.1:{port}/v1/health", **env
    ) as pid:
        versions = {"ogx": installed("ogx") or ""}
        yield Server("ogx", f"http://127.0.0.1:{port}/v1", pid, "upstream/instant", versions=versions)


def ogx_config(upstream_url: str, port: int, moderations: str = "") -> Path:
    """Return a configuration with the parts that OGX needs for Responses, and SQLite as in its starter
    one."""
    config = _fresh("ogx.yaml")
    written = Path(__file__).with_name("ogx.yaml").read_text()
    endpoint = json.dumps(f"{moderations}/moderations" if moderations else None)
    for name, value in (
        ("UPSTREAM_URL", upstream_url),
        ("SERVER_PORT", str(port)),
        ("MODERATIONS", endpoint),
    ):
        written = written.replace(name, value)
    config.write_text(written)
    return config


SERVERS = {"slipring": slipring, "litellm": litellm, "ogx": ogx}


@contextmanager
def vllm(
    threads: int,
    model: Path = MODEL,
    flags: Sequence[str] = ("--tool-call-parser", "hermes", "--disable-log-stats"),
    **variables: str,
) -> Iterator[Server]:
    """Start vLLM's CPU build with a tiny model."""
    more = ("--dtype", "float32", "--max-num-seqs", "16", *ON_CPU)
    env = {**cpu_environment(threads), "VLLM_LOGGING_LEVEL": "ERROR", **variables}
    with vllm_with(VLLM_PYTHON, model, *more, *flags, **env) as server:
        yield server


ON_CPU = ("--enforce-eager",)
"""Flags of vLLM's CPU build: there is nothing to compile for a tiny model."""


def cpu_environment(threads: int, kv_gib: int = 1) -> dict[str, str]:
    """Variables of vLLM's CPU build."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }


@contextmanager
def vllm_with(python: Path, model: Path, *flags: str, **env: str) -> Iterator[Server]:
    """Start the vLLM of an interpreter with slipring's plugin. Prefix caching is on, which is its default."""
    port = free_port()
    command = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", "tiny"),
        *("--max-model-len", str(CONTEXT), "--enable-auto-tool-choice", "--enable-prompt-tokens-details"),
        *("--uvicorn-log-level", "error", *flags),
    ]
    fixed = {
        "VLLM_PLUGINS": "slipring_sessions",
        "VLLM_ENABLE_RESPONSES_API_STORE": "1",  # without it, previous_response_id is refused
        "VLLM_NO_USAGE_STATS": "1",
        # Clients keep connections for longer than its 5 s, and one that it closes as they send fails.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "HF_HUB_OFFLINE": "1",
    }
    with _running("vllm", command, f"http://127.0.0.1:{port}/health", **fixed, **env) as pid:
        yield running_vllm(f"http://127.0.0.1:{port}", pid, model)


def running_vllm(url: str, pid: int, model: Path) -> Server:
    """A vLLM that serves the model of a directory at ``url``."""
    versions = {"vllm": _json(f"{url}/version")["version"]}
    served = _first_model(f"{url}/v1/models")
    return Server("vllm", f"{url}/v1", pid, served, versions=versions, files=model)


@contextmanager
def llama_server(
    threads: int, model: Path = GGUF, files: Path = MODEL, script: Path = _CHILD, **settings: object
) -> Iterator[Server]:
    """Start the llama-server that slipring embeds, with a slot for each loop. ``script``: what runs it, with
    further settings."""
    key = secrets.token_hex(16)
    sent = {
        **{"path": str(model), "context": CONTEXT, "slots": LOOPS_AT_ONCE, "threads": threads},
        **{"gpu_layers": 0, "chunk": 512, "spec": "", "directory": "", "alias": "", "key": key},
        **{"projector": "", "media_marker": ""},
        **settings,
    }
    DIRECTORY.mkdir(exist_ok=True)
    with (DIRECTORY / "llama-server.log").open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(sent).encode() + b"\n")
        process.stdin.flush()
        url = json.loads(process.stdout.readline())["url"]
        yield Server(
            "llama-server", f"{url}/v1", process.pid, model.name, key, _llama_versions(), files=files
        )
    finally:
        process.kill()  # it has nothing to save
        process.communicate()


def _llama_versions() -> dict[str, str]:
    import xllamacpp

    return {"xllamacpp": xllamacpp.__version__}


@contextmanager
def slipring_over(
    engine: Server, name: str = "slipring", sessions: str = "off", options: str = ""
) -> Iterator[Server]:
    """Start slipring in front of a running vLLM, whose sessions are ``on`` or ``off``, or llama-server.
    ``options``: further ones of the engine vllm, each after a comma."""
    port, store = free_port(), _fresh(f"{name}.db")
    url = engine.url.removesuffix("/v1")
    spec = {
        "vllm": f"vllm:{url},tokenizer={engine.files},sessions={sessions}{options}",
        "llama-server": f"llama:{url},tokenizer={engine.files / 'tokenizer.json'},key_env=LLAMA_KEY",
    }[engine.name]
    command = [
        *(sys.executable, "-m", "slipring", "serve", "--port", str(port), "--log-level", "error"),
        *("--store", f"sqlite:{store}", "--engine", spec),
    ]
    health = f"http://127.0.0.1:{port}/v1/models"
    with _running(f"{name}-{engine.name}", command, health, LLAMA_KEY=engine.key) as pid:
        served = _first_model(health)
        yield Server(name, f"http://127.0.0.1:{port}/v1", pid, served, behind=engine)


@contextmanager
def agentic(engine: Server, program: Path = AGENTIC_PROGRAM) -> Iterator[Server]:
    """Start agentic-api in front of a running vLLM, or of another server of Responses: the program that its
    launcher starts, with a store of its own."""
    port, store = free_port(), _fresh("agentic.db")
    command = [
        *(str(program), "--db-url", f"sqlite://{store}?mode=rwc"),
        *("--gateway-host", "127.0.0.1", "--gateway-port", str(port)),
        *("--llm-api-base", engine.url.removesuffix("/v1")),
    ]
    with _running("agentic-api", command, f"http://127.0.0.1:{port}/health", RUST_LOG="error") as pid:
        versions = {"agentic-api": AGENTIC}
        yield Server(
            "agentic-api", f"http://127.0.0.1:{port}/v1", pid, engine.model, "none", versions, engine
        )


ENGINES: dict[str, Callable[[int], AbstractContextManager[Server]]] = {
    "vllm": vllm,
    "llama-server": llama_server,
}


def _first_model(url: str) -> str:
    name: str = _json(url)["data"][0]["id"]
    return name


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


@contextmanager
def _running(name: str, command: list[str], health: str, **env: str) -> Iterator[int]:
    """Start a process, wait until it serves, and end it with the block. Its output goes to a file."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("SLIPRING_")}
    DIRECTORY.mkdir(exist_ok=True)
    log = DIRECTORY / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**known, **env}, cwd=DIRECTORY)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(health):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not serve; see {log}")
            time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _fresh(name: str) -> Path:
    """Return a path below the peers' directory that does not exist."""
    DIRECTORY.mkdir(exist_ok=True)
    place = DIRECTORY / "runs" / secrets.token_hex(4)
    place.mkdir(parents=True)
    return place / name
