"""``slipring launch``: starts an installed client that uses a server, beside the user's own settings.

The server is the one that is named, or one that the command finds or starts. A client is pointed at it by
flags, environment variables and files in a directory that is removed afterwards: nothing that belongs to the
user is written.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slipring.commands import child_server
from slipring.commands.argument_parser import CommandFailed, text
from slipring.commands.client_environment import (
    DEFAULT_URL,
    KEY_VARIABLE,
    URL_VARIABLE,
    api_key,
    is_web_url,
    named_url,
    variable_name,
)

_CLIENT_KEY_VARIABLE = "SLIPRING_KEY"
"""The variable with the API key, for clients whose settings name a variable and not the key itself."""
_TIMEOUT_S = 10
_STOP_TIMEOUT_S = 15
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_INTERRUPTED = 130
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


# --- The clients ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """The server and the model that a client is pointed at. The repr omits the API key."""

    url: str
    model: str
    key: str = field(repr=False)
    described: Mapping[str, Any]
    """The server's answer to ``GET /v1/models?client_version=…``."""

    @property
    def context(self) -> int | None:
        """The context window of the model in tokens, if the server states it."""
        known = self.described.get("models", [])
        found = next((model.get("context_window") for model in known if model["slug"] == self.model), None)
        return found if isinstance(found, int) else None


@dataclass(frozen=True)
class Settings:
    """What a client is started with, before the user's own arguments."""

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    program: str
    install: str
    """The command that installs it."""
    point: Callable[[Target, Path], Settings]
    """Make the settings for a target. May write files into the given directory."""
    first_turn: int = 0
    """About how many tokens its instructions, its tools and a short task take; 0: not measured."""

    def shortage(self, target: Target) -> str | None:
        """One line for a model whose context is too small for the client's first turn; None if it is large
        enough, or not known."""
        if target.context is None or target.context >= self.first_turn:
            return None
        return (
            f"{target.model} has a context of {target.context:,} tokens, and the first turn of {self.program}"
            f" takes about {self.first_turn:,}: expect it to fail, or serve a model with a larger context, as"
            " in 'slipring serve --model Qwen/Qwen3-8B-GGUF'"
        )


def _point_codex(target: Target, directory: Path) -> Settings:
    provider: dict[str, str | bool] = {
        "name": "slipring",
        "base_url": target.url,
        "env_key": _CLIENT_KEY_VARIABLE,
        "wire_api": "responses",
        "supports_websockets": True,
    }
    chosen: dict[str, str | bool] = {"model": target.model, "model_provider": "slipring"}
    chosen |= {f"model_providers.slipring.{name}": value for name, value in provider.items()}
    known = target.described.get("models", [])
    if any(model["slug"] == target.model for model in known):
        catalog = directory / "models.json"
        catalog.write_text(json.dumps({"models": known}))
        chosen["model_catalog_json"] = str(catalog)
    # A JSON string or boolean is one of TOML as well.
    flags = [("-c", f"{name}={json.dumps(value)}") for name, value in chosen.items()]
    return Settings(tuple(word for flag in flags for word in flag), {_CLIENT_KEY_VARIABLE: target.key})


def _point_claude(target: Target, directory: Path) -> Settings:
    # Its small model writes titles and summaries; the others are those that a user or a subagent may name.
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    named = (f"ANTHROPIC_DEFAULT_{line}_MODEL" for line in ("HAIKU", "SONNET", "OPUS", "FABLE"))
    variables = dict.fromkeys((*models, *named), target.model)
    if target.context is not None:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
    return Settings(
        variables={
            **variables,
            "ANTHROPIC_BASE_URL": target.url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": target.key,
            "ANTHROPIC_API_KEY": "",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    )


def _point_opencode(target: Target, directory: Path) -> Settings:
    model = f"openai/{target.model}"
    provider = {"options": {"baseURL": target.url}, "models": {target.model: {"name": target.model}}}
    settings = {
        "model": model,
        "small_model": model,
        "autoupdate": False,
        "provider": {"openai": provider},
    }
    return Settings(
        variables={
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_AUTH_CONTENT": json.dumps({"openai": {"type": "api", "key": target.key}}),
            "OPENCODE_EXPERIMENTAL_WEBSOCKETS": "1",
        }
    )


def _point_pi(target: Target, directory: Path) -> Settings:
    model = {
        "id": target.model,
        "name": target.model,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": target.context or 131_072,
        "maxTokens": 16_384,
    }
    provider = {
        "baseUrl": target.url,
        "apiKey": _CLIENT_KEY_VARIABLE,
        "api": "openai-responses",
        "models": [model],
    }
    extension = directory / "slipring.ts"
    extension.write_text(
        f"export default (pi: any) => pi.registerProvider('slipring', {json.dumps(provider)});\n"
    )
    arguments = ("--extension", str(extension), "--provider", "slipring", "--model", target.model)
    return Settings(arguments, {_CLIENT_KEY_VARIABLE: target.key})


def _point_cline(target: Target, directory: Path) -> Settings:
    data = directory / "data"
    data.mkdir()
    # By the Responses API it takes only names that it knows, and calls tools; by Chat Completions any.
    is_known = target.model.startswith("gpt-5")
    named = "ApiModelId" if is_known else "OpenAiModelId"
    state: dict[str, object] = {"welcomeViewCompleted": True, "openAiBaseUrl": target.url}
    for mode in ("actMode", "planMode"):
        state |= {
            f"{mode}ApiProvider": "openai-native" if is_known else "openai",
            f"{mode}{named}": target.model,
        }
        if target.context is not None and not is_known:
            state[f"{mode}OpenAiModelInfo"] = {"contextWindow": target.context, "supportsPromptCache": True}
    (data / "globalState.json").write_text(json.dumps(state))
    keys = ("openAiApiKey", "openAiNativeApiKey")
    (data / "secrets.json").write_text(json.dumps(dict.fromkeys(keys, target.key)))
    return Settings(("--config", str(directory)), {"OPENAI_BASE_URL": target.url})


def _point_continue(target: Target, directory: Path) -> Settings:
    model: dict[str, object] = {
        "name": "slipring",
        "provider": "openai",
        "model": target.model,
        "apiBase": target.url,
        "apiKey": target.key,
        "roles": ["chat"],
        "capabilities": ["tool_use"],
    }
    if target.context is not None:
        model["defaultCompletionOptions"] = {"contextLength": target.context}
    config = directory / "config.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"name": "slipring", "version": "1.0.0", "schema": "v1", "models": [model]}))
    return Settings(("--config", str(config)))


def _point_aider(target: Target, directory: Path) -> Settings:
    model = f"openai/{target.model}"
    known: dict[str, object] = {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }
    if target.context is not None:
        known["max_input_tokens"] = target.context
    metadata = directory / "models.json"
    metadata.write_text(json.dumps({model: known}))
    arguments = ("--model", model, "--model-metadata-file", str(metadata), "--no-show-model-warnings")
    return Settings(arguments, {"OPENAI_API_BASE": target.url, "OPENAI_API_KEY": target.key})


CLIENTS = {
    "codex": Client("codex", "npm install -g @openai/codex", _point_codex, 10_000),
    "claude": Client("claude", "npm install -g @anthropic-ai/claude-code", _point_claude, 30_000),
    "opencode": Client("opencode", "npm install -g opencode-ai", _point_opencode),
    "pi": Client("pi", "npm install -g @mariozechner/pi-coding-agent", _point_pi),
    "cline": Client("cline", "npm install -g cline@2.18.0", _point_cline),
    "continue": Client("cn", "npm install -g @continuedev/cli", _point_continue),
    "aider": Client("aider", "python -m pip install aider-chat", _point_aider),
}


# --- The server -------------------------------------------------------------------------------------


class KeyRefused(CommandFailed):
    """There is a server, which does not accept the API key."""


def describe(url: str, key: str) -> dict[str, Any]:
    """The models of a server, with what Codex wants to know about them. Raises ``CommandFailed``."""
    if not is_web_url(url):
        raise CommandFailed(f"cannot use {url}: not a valid http:// or https:// URL")
    opener = build_opener(ProxyHandler({})) if urlsplit(url).hostname in _LOOPBACK else build_opener()
    try:
        request = Request(f"{url}/models?client_version=1", headers={"Authorization": f"Bearer {key}"})
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            content = answer.read()
    except HTTPError as refusal:
        answered = f"{url} answered with status {refusal.code}"
        if refusal.code in (401, 403):
            raise KeyRefused(f"{answered}: set OPENAI_API_KEY, or see --api-key-env") from None
        raise CommandFailed(answered) from None
    except (OSError, HTTPException) as failure:
        from slipring.base.connection_failures import reason  # imports an HTTP client

        raise CommandFailed(f"cannot reach {url}: {reason(failure)}") from None
    try:
        described = json.loads(content)
    except ValueError:
        raise CommandFailed(f"{url} does not answer like a Responses server: check the path") from None
    if not isinstance(described, dict) or not described.get("data"):
        raise CommandFailed(f"{url} offers no model")
    return described


@contextmanager
def started(engine: str, model: str | None) -> Iterator[str]:
    """Start a server on a free port; yield its URL, and stop it at the end. Raises ``CommandFailed``."""
    process = subprocess.Popen(
        child_server.command(engine, ["--model", model] if model else []),
        env=child_server.environment(),
        stdin=subprocess.PIPE,  # the server stops when it closes, even if this process is killed
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the client
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := child_server.SERVES.search(line):
                yield found[1].decode()
                break
        else:
            raise CommandFailed(f"slipring serve exited with code {process.wait()} before it was ready")
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


# --- The command ------------------------------------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("client", metavar="CLIENT", choices=CLIENTS, help=", ".join(CLIENTS))
    parser.add_argument(
        "--url",
        type=text,
        help=f"base URL of the server (default: ${URL_VARIABLE}; else {DEFAULT_URL} if a server answers"
        " there; else a new server)",
    )
    parser.add_argument(
        "--model", metavar="NAME", type=text, help="model to use (default: the server's first)"
    )
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        type=variable_name,
        default=KEY_VARIABLE,
        help=f"environment variable that holds the API key (default: {KEY_VARIABLE})",
    )
    parser.add_argument(
        "--engine",
        metavar="KIND[:OPTIONS]",
        type=text,
        default="llama",
        help="engine of a new server (default: llama, with the packaged small model)",
    )


def launch(arguments: argparse.Namespace) -> int:
    """Run a client until it ends; return its exit code. Raises ``CommandFailed``, ``UsageError``."""
    client = CLIENTS[arguments.client]
    program = shutil.which(client.program)
    if program is None:
        raise CommandFailed(f"{client.program} is not installed: {client.install}")
    key = api_key(arguments.api_key_env, os.environ) or "any"
    try:
        with _server(arguments, key) as (url, described):
            model = arguments.model or described["data"][0]["id"]
            target = Target(url, model, key, described)
            if (shortage := client.shortage(target)) is not None:
                print(f"slipring: {shortage}", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="slipring-launch-") as directory:
                settings = client.point(target, Path(directory))
                command = [program, *settings.arguments, *arguments.arguments]
                return _run(command, {**os.environ, **settings.variables})
    except KeyboardInterrupt:
        return _INTERRUPTED  # before the client was started


@contextmanager
def _server(arguments: argparse.Namespace, key: str) -> Iterator[tuple[str, Any]]:
    """The URL of the server, and what it says about its models."""
    named = arguments.url or named_url(os.environ)
    url = (named or DEFAULT_URL).rstrip("/")
    try:
        described = describe(url, key)
    except CommandFailed as error:
        if named or isinstance(error, KeyRefused):
            raise
    else:
        yield url, described
        return
    print(f"slipring: starting a server with --engine {arguments.engine} …", file=sys.stderr)
    with started(arguments.engine, arguments.model) as url:
        yield url, describe(url, key)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command on this terminal; return its exit code, or 128 plus the signal that ended it.

    Ctrl-C reaches the command from the terminal, and does nothing here. Other signals are passed on.
    """
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is not None and process.poll() is None and number in _PASSED_ON:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, *_PASSED_ON)}
    try:
        process = subprocess.Popen(command, env=environ)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
