"""aider, which edits files by what a model writes: Chat Completions, through the LiteLLM that it brings."""

import subprocess

from tests.clients.real.client import Client
from tests.clients.real.stage import LLAMA_MODEL, Ended, Json, Stage, say
from tests.relay import Relay

aider = Client("aider", "aider")

SETUP = """\
OPENAI_API_BASE=http://127.0.0.1:8000/v1 OPENAI_API_KEY=any aider --model openai/simulated
"""
"""As shown in `docs/clients.md`."""

_UNATTENDED = (
    *("--yes-always", "--no-check-update", "--analytics-disable", "--no-show-release-notes"),
    *("--no-show-model-warnings", "--no-gitignore", "--no-pretty", "--no-suggest-shell-commands"),
)
_WHOLE = "It says hello now.\n\nhello.py\n```\nprint('slip-42')\n```\n"
_DIFF = """\
It says more.

hello.py
```python
<<<<<<< SEARCH
print('slip-42')
=======
print('slip-43')
>>>>>>> REPLACE
```
"""


def _repository(stage: Stage) -> None:
    """A repository with one file, in the client's directory."""
    (stage.directory / "hello.py").write_text("print('hi')\n")
    own = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for words in (("init", "-q"), ("add", "hello.py"), ("commit", "-q", "-m", "begin")):
        subprocess.run(("git", *own, *words), cwd=stage.directory, check=True, capture_output=True)


async def _edit(stage: Stage, relay: Relay, message: str, *flags: str, model: str = "simulated") -> Ended:
    variables, _, words = SETUP.strip().partition(" aider ")
    set_up = dict(pair.split("=", 1) for pair in variables.split())
    return await stage.run(
        stage.workshop.python("aider").with_name("aider"),
        *words.replace("simulated", model).split(),
        *(*_UNATTENDED, *flags, "--message", message, "hello.py"),
        within_s=180,
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        GIT_AUTHOR_NAME="t",
        GIT_AUTHOR_EMAIL="t@example.com",
        GIT_COMMITTER_NAME="t",
        GIT_COMMITTER_EMAIL="t@example.com",
        **{**set_up, "OPENAI_API_BASE": relay.url},
    )


def _log(stage: Stage) -> list[str]:
    shown = subprocess.run(
        ("git", "log", "--format=%s"), cwd=stage.directory, check=True, capture_output=True, text=True
    )
    return shown.stdout.splitlines()


def _bodies(relay: Relay) -> list[Json]:
    assert {exchange.path for exchange in relay.exchanges} == {"/v1/chat/completions"}
    assert {exchange.status for exchange in relay.exchanges} == {200}
    return [exchange.body for exchange in relay.exchanges]


@aider.check("Chat Completions", "a file is edited and committed, whose message is the model's too")
async def _(stage: Stage) -> None:
    _repository(stage)
    thought = {"reasoning": "A new greeting."}
    async with stage.serve([thought, say(_WHOLE)], [say("fix: greet otherwise")]) as relay:
        ended = await _edit(stage, relay, "Print slip-42")
    ended.require_success()
    assert (stage.directory / "hello.py").read_text() == "print('slip-42')\n"
    assert _log(stage) == ["fix: greet otherwise", "begin"]
    asked, committed = _bodies(relay)
    assert asked["stream"] is True
    assert "stream" not in committed or committed["stream"] is False


@aider.check("Chat Completions", "a second message edits by a diff, after the first one's history")
async def _(stage: Stage) -> None:
    _repository(stage)
    async with stage.serve([say(_WHOLE)], [say("one")], [say(_DIFF)], [say("two")]) as relay:
        (await _edit(stage, relay, "Print slip-42")).require_success()
        flags = ("--edit-format", "diff", "--restore-chat-history")
        (await _edit(stage, relay, "Print slip-43", *flags)).require_success()
    assert (stage.directory / "hello.py").read_text() == "print('slip-43')\n"
    assert _log(stage) == ["two", "one", "begin"]
    said = [message["content"] for message in _bodies(relay)[2]["messages"]]
    assert any("It says hello now." in text for text in said)


@aider.check("Chat Completions", "an answer of the embedded model, without repository")
async def _(stage: Stage) -> None:
    (stage.directory / "hello.py").write_text("print('hi')\n")
    async with stage.serve(engine="llama:slots=1,context=8192") as relay:
        flags = ("--no-git", "--chat-mode", "ask", "--map-tokens", "0")
        ended = await _edit(stage, relay, "Hello", *flags, model=LLAMA_MODEL)
    ended.require_success()
    assert _bodies(relay)


@aider.check("Chat Completions", "slipring launch aider")
async def _(stage: Stage) -> None:
    _repository(stage)
    programs = stage.workshop.python("aider").parent
    async with stage.serve([say(_WHOLE)]) as relay:
        words = (*_UNATTENDED, "--no-auto-commits", "--message", "Print slip-42", "hello.py")
        ended = await stage.launch("aider", programs, relay.url, *words)
    ended.require_success()
    assert (stage.directory / "hello.py").read_text() == "print('slip-42')\n"
    relay.exchanges.pop(0)  # `launch` asks for the models
    assert len(_bodies(relay)) == 1
