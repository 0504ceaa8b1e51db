"""An MCP server on standard input and output, for tests: ``python stdio_server.py MODE [ERA]``.

It writes what it does to the file that ``STDIO_LOG`` names. Modes are named for what the server does wrong.
"""

import json
import os
import subprocess
import sys
import time

MODE = sys.argv[1]
IS_MODERN = sys.argv[2:] == ["modern"]
late: list[object] = []
"""Calls that are answered with the next one."""
listened = False


def log(line: str) -> None:
    with open(os.environ["STDIO_LOG"], "a") as file:
        file.write(line + "\n")


def send(message: object) -> None:
    sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    sys.stdout.flush()


def answer(request_id: object, result: object) -> None:
    send({"jsonrpc": "2.0", "id": request_id, "result": result})


def call(request_id: object, params: dict) -> None:  # type: ignore[type-arg] # noqa: C901
    if MODE == "crash":
        os._exit(3)
    if MODE == "hang":
        return
    if MODE == "late" and not late:
        return late.append(request_id)
    for earlier in late:
        answer(earlier, {"content": [{"type": "text", "text": '"late"'}]})
    if MODE == "malformed":
        return send('{"jsonrpc": "2.0", "id": ')
    if MODE in ("half", "unterminated"):
        last = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"content": []}})
        sys.stdout.write(last if MODE == "unterminated" else last[:20])
        sys.stdout.flush()
        os._exit(3)
    if MODE == "huge":
        return send("{" + "x" * 300_000)
    if MODE == "endless":
        while True:
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 1000}})
    if MODE == "curious":
        send({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}})
        reply = json.loads(sys.stdin.readline())
        return answer(request_id, {"content": [{"type": "text", "text": json.dumps(reply["error"])}]})
    if MODE == "progress":
        token = params["_meta"]["progressToken"]
        note = {"progressToken": token, "progress": 1, "message": "working"}
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": note})
    text = json.dumps(dict(os.environ)) if params["name"] == "env" else json.dumps(params["arguments"])
    answer(request_id, {"content": [{"type": "text", "text": text}]})
    if MODE == "twice":
        answer(request_id, {"content": [{"type": "text", "text": '"again"'}]})
    if MODE == "changing":
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


def listen(request_id: object) -> None:
    """End the first subscription of a server that is restless."""
    global listened
    send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"})
    if MODE == "restless" and not listened:
        answer(request_id, {"resultType": "complete"})
    listened = True


def main() -> None:  # noqa: C901
    log(f"started {os.getpid()}")
    if MODE == "grandchild":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        log(f"grandchild {child.pid}")
    if MODE == "noisy":
        print("Welcome to the server!", flush=True)
        sys.stderr.write("x" * 1_000_000 + "the last words of SECRET-VALUE")
        sys.stderr.flush()
    for line in sys.stdin:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        log(method or "reply")
        if method == "server/discover" and IS_MODERN:
            capabilities = {"tools": {"listChanged": True}}
            answer(request_id, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
        elif method == "server/discover" and MODE == "strict":
            sys.exit("expected initialize")
        elif method == "server/discover" and MODE == "silent":
            pass
        elif method == "initialize":
            answer(request_id, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}})
        elif method == "tools/list":
            answer(request_id, {"tools": [{"name": MODE, "inputSchema": {"type": "object"}}]})
        elif method == "tools/call":
            call(request_id, message["params"])
        elif method == "subscriptions/listen":
            listen(request_id)
        elif request_id is not None:
            send({"jsonrpc": "2.0", "id": request_id, "error": {"code": -32601, "message": "unknown"}})
    log("input closed")
    if MODE == "grandchild":
        time.sleep(600)


main()
