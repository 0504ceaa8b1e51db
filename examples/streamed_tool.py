"""An agent whose tool runs commands and sends what they print while they run.

The server prefills the output as it arrives. When the command has ended, only the rest is left to read.
Start a server (`make run`), then: python examples/streamed_tool.py
"""

import codecs
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

MODEL = os.environ.get("OPENAI_MODEL", "smollm2-135m-instruct")
MAX_STEPS = 8
MOST_BYTES = 16_384
TIMEOUT_S = 60
BETA = {"OpenAI-Beta": "slipring_tool_output=v1"}
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "any"),
)
CHECKS = """
import time
for number in range(20):
    print(f"check {number}: the parser reads line {number * 37} as expected", flush=True)
    time.sleep(0.05)
"""
COMMANDS = {
    "checks": [sys.executable, "-c", CHECKS],  # stands for your own test suite
    "list_files": ["ls", "-l"],
}
"""The only commands that the model can run: it chooses one by its name."""
TOOL = {
    "type": "function",
    "name": "shell",
    "description": "Run a command and read what it prints.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string", "enum": list(COMMANDS)}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "strict": True,
}


def run(command: str, report: Callable[[str], None]) -> str:
    """Run a command, report each piece of its output, and return all of it. Ends it at the limits."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces, left = [], MOST_BYTES
    with subprocess.Popen(COMMANDS[command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = threading.Timer(TIMEOUT_S, process.kill)
        deadline.start()
        try:
            while left and (data := process.stdout.read1(left)):
                left -= len(data)
                pieces.append(decoder.decode(data))
                report(pieces[-1])
            if not left:
                process.kill()  # it prints too much
            status = process.wait()
        finally:
            process.kill()  # does nothing if it has ended
            deadline.cancel()
    return "".join([*pieces, f"\nexit code {status}"])


def answer(connection: ResponsesConnection, response_id: str, call: Any) -> dict[str, str]:
    """Run the command of a call while its output is streamed; return the finished output."""
    target = {"response_id": response_id, "call_id": call.call_id}

    def report(delta: str) -> None:
        print(delta, end="", flush=True)
        connection.send({"type": "response.tool_output.delta", **target, "delta": delta})

    output = run(json.loads(call.arguments)["command"], report)
    connection.send({"type": "response.tool_output.done", **target})  # before the next call of the response
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def step(connection: ResponsesConnection, **fields: Any) -> Response:
    """Create a response and wait for its end."""
    connection.response.create(model=MODEL, tools=[TOOL], max_output_tokens=80, store=False, **fields)
    for event in connection:
        if event.type in ("response.completed", "response.incomplete"):  # incomplete: cut at the limit
            return event.response
        if event.type in ("error", "response.failed"):
            raise SystemExit(event.to_json())
    raise SystemExit("the server closed the connection")


with client, client.responses.connect(extra_headers=BETA) as connection:
    response = step(connection, input="Do the checks pass?", tool_choice="required")
    for _ in range(MAX_STEPS):
        done = [item for item in response.output if item.status == "completed"]  # not a call cut at the limit
        calls = [item for item in done if item.type == "function_call"]
        if not calls:
            break
        outputs = [answer(connection, response.id, call) for call in calls]
        response = step(connection, input=outputs, previous_response_id=response.id)
        usage = response.usage
        cached = usage.input_tokens_details.cached_tokens
        print(f"\n{usage.input_tokens - cached} of {usage.input_tokens} tokens were left to read")
    print(response.output_text)
