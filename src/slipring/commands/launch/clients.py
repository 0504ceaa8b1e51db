"""The clients that can be launched, and how each is pointed at a server.

A client gets flags, environment variables and files in a directory that is removed afterwards. Nothing that
belongs to the user is written.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KEY_VARIABLE = "SLIPRING_KEY"


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
        "env_key": _KEY_VARIABLE,
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
    return Settings(tuple(word for flag in flags for word in flag), {_KEY_VARIABLE: target.key})


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
        "apiKey": _KEY_VARIABLE,
        "api": "openai-responses",
        "models": [model],
    }
    extension = directory / "slipring.ts"
    extension.write_text(
        f"export default (pi: any) => pi.registerProvider('slipring', {json.dumps(provider)});\n"
    )
    arguments = ("--extension", str(extension), "--provider", "slipring", "--model", target.model)
    return Settings(arguments, {_KEY_VARIABLE: target.key})


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
