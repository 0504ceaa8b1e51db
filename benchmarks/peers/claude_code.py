"""Records a loop of Claude Code: what the real client sends while a scripted model answers it.

    python benchmarks/peers/claude_code.py

The client is installed from npm into ``.clients``, as `make clients` does. The model is slipring's simulated
engine, whose answers are below: thirty turns with a thought, a text and a call each, of which one starts a
subagent. The client adds its own prompts, 25 tools, reminders, and messages with the role ``system`` between
the others. All of that is its own text: the recording is kept in ``.peers``, and is not part of the
repository. ``replay.py`` sends it to servers.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from servers import DIRECTORY, ROOT

sys.path.insert(0, str(ROOT))  # the installer and the relay belong to the tests

from slipring.commands.bench.workloads.prose import Prose
from tests.clients.real.installing import Workshop
from tests.clients.real.stage import Answer, Stage, call, say

RECORDING = DIRECTORY / "claude-code.json"
TURNS = 30
_FILES = 6
_FILE_BYTES = 3_000
_TASK = "Mend the rounding of intervals. Read all files of the project first, and test every change."
_SUBTASK = "Find out which files of the project round an interval, and report their names."
_DELEGATED_AT = 12
"""The turn that starts the subagent."""
_VARIABLES = {
    "ANTHROPIC_AUTH_TOKEN": "any",
    "ANTHROPIC_MODEL": "simulated",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "simulated",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # By default, only for models that it knows by their names.
    "CLAUDE_CODE_FORCE_MID_CONVERSATION_SYSTEM": "1",
    # It would search for half of its tools, which not every server that is compared knows.
    "ENABLE_TOOL_SEARCH": "false",
    # Its task list, of which it reminds the model: by default, with a terminal only.
    "CLAUDE_CODE_ENABLE_TODO_TOOLS": "1",
    "DISABLE_TELEMETRY": "1",
    "IS_SANDBOX": "1",
}


class Recording(Struct):
    """What the client has sent, and what it was answered."""

    client: str
    requests: list[dict[str, Any]]
    """The bodies of ``POST /v1/messages``."""
    answers: list[Answer]
    """The answer to each, as steps of a script."""


def read() -> Recording:
    if not RECORDING.exists():
        raise SystemExit("There is no recording: run benchmarks/peers/claude_code.py first.")
    return msgspec.json.decode(RECORDING.read_bytes(), type=Recording)


def answers(project: Path) -> Iterator[Answer]:
    """The answers of the main loop, and those of the subagent after the one that starts it."""
    prose = Prose("claude-code")
    for number in range(TURNS - 1):
        thought = {"reasoning": f"Step {number}. {prose.task()}"}
        yield [thought, say(f"Step {number}: I go on."), _step(number, project)]
        if number == _DELEGATED_AT:
            for at in range(3):
                command = f"grep -n round file_{at}.py | head -20"
                yield [say(f"Part {at}."), call("Bash", command=command, description="Search")]
            yield [say("No file rounds an interval but file_1.py.")]
    yield [{"reasoning": "All is done."}, say("The rounding is mended, and every change was tested.")]


def _step(number: int, project: Path) -> dict[str, Any]:
    if number == _DELEGATED_AT:
        # In the background, its requests would come in any order among those of the main loop.
        return call(
            "Agent",
            description="Search",
            prompt=_SUBTASK,
            subagent_type="general-purpose",
            run_in_background=False,
        )
    file = project / f"file_{number % _FILES}.py"
    if number == 0:
        return call("TaskCreate", subject="Mend the rounding", description=_TASK)
    if number <= _FILES:
        return call("Read", file_path=str(file))
    if number % 5 == 2:
        return call(
            "Edit", file_path=str(file), old_string=f"# {file.name}\n", new_string=f"# step {number}\n"
        )
    if number % 5 == 4:
        # Changes a file that the client has read: it then reminds the model of that.
        return call("Bash", command=f"echo '# {number}' >> {file.name}", description="Append a line")
    if number % 5 == 0:
        return call("Write", file_path=str(project / f"note_{number}.md"), content=_note(number))
    return call("Bash", command=f"tail -n 30 {file.name}; wc -l *", description="Look at the end")


def _note(number: int) -> str:
    return "".join(f"- {Prose(f'note {number} {line}').task()}\n" for line in range(3))


async def record(directory: Path) -> Recording:
    workshop = Workshop(ROOT / ".clients")
    workshop.install("claude-code")
    prose = Prose("project")
    for number in range(_FILES):
        name = f"file_{number}.py"
        (directory / name).write_text(f"# {name}\n" + prose.tool_output(_FILE_BYTES))
    given = list(answers(directory))
    stage = Stage(workshop, directory)
    async with stage.serve(*given) as relay:
        ended = await stage.run(
            *(workshop.package("claude-code") / "claude", "-p", _TASK),
            *("--dangerously-skip-permissions", "--output-format", "json"),
            within_s=300,
            ANTHROPIC_BASE_URL=relay.url.removesuffix("/v1"),
            **_VARIABLES,
        )
    sent = [each for each in relay.exchanges if each.path.endswith("/messages")]
    if ended.code or len(sent) != len(given) or any(each.status != 200 for each in sent):
        raise SystemExit(f"{len(sent)} requests for {len(given)} answers\n{ended}")
    return Recording(workshop.version("claude-code"), [each.body for each in sent], given)


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="project-") as directory:
        recording = asyncio.run(record(Path(directory)))
    RECORDING.write_bytes(msgspec.json.encode(recording))
    reminders = sum(message["role"] == "system" for message in recording.requests[-1]["messages"])
    print(
        f"Claude Code {recording.client}: {len(recording.requests)} requests,"
        f" {len(recording.requests[0]['tools'])} tools, {reminders} system messages,"
        f" {sum(len(json.dumps(body)) for body in recording.requests) / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
