"""A model calls a tool of an MCP server, which slipring runs: one request, one response.

`make example-hosted-tools` installs an MCP server of PyPI (mcp-server-time) and runs this file, which starts
slipring with the small model and that server, asks one question, and prints what happened.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from openai import OpenAI

COMMAND = os.environ.get("MCP_COMMAND", "mcp-server-time").split()
ENGINE = os.environ.get("ENGINE", "llama:slots=1,context=2048")
MODEL = os.environ.get("OPENAI_MODEL", "smollm2-135m-instruct")
TOOL = "get_current_time"


def ask(url: str) -> None:
    clock = {
        "type": "mcp",
        "server_label": "clock",  # the name in the file below
        "allowed_tools": [TOOL],
        "require_approval": "never",
    }
    # The model is too small to know when it needs a tool: the request requires a call.
    choice = {"type": "mcp", "server_label": "clock", "name": TOOL}
    bounds = {"max_output_tokens": 300, "max_tool_calls": 1, "temperature": 0}
    with (
        OpenAI(base_url=url, api_key="any") as client,
        client.responses.stream(
            model=MODEL,
            input=f"Call {TOOL} with timezone Europe/Oslo",
            tools=[clock],
            tool_choice=choice,
            **bounds,
        ) as stream,
    ):
        for event in stream:
            if event.type == "response.output_item.done" and event.item.type == "mcp_list_tools":
                print("tools:", ", ".join(tool.name for tool in event.item.tools))
            elif event.type == "response.output_item.done" and event.item.type == "mcp_call":
                print(f"call: {event.item.name}({event.item.arguments})")
                print("result:", event.item.output or event.item.error)
            elif event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
    print()


with tempfile.TemporaryDirectory() as directory:
    config = Path(directory, "slipring.toml")
    program, *arguments = map(json.dumps, COMMAND)
    config.write_text(
        f'[[mcp]]\nname = "clock"\ncommand = {program}\nargs = [{", ".join(arguments)}]\n', encoding="utf-8"
    )
    serve = [
        "-m",
        "slipring",
        "serve",
        "--config",
        str(config),
        "--port",
        "0",
        "--store",
        "memory",
        "--log-level",
        "error",
    ]
    server = subprocess.Popen([sys.executable, *serve, "--engine", ENGINE], stdout=subprocess.PIPE, text=True)
    try:
        # It prints its URL once it serves.
        address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        ask(address)
    finally:
        server.terminate()
        server.communicate()
