"""A chat server that always says hello: what an installed slipring is put in front of."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = "Hello from the chat server."
_MODEL = "greeter"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"object": "list", "data": [{"id": _MODEL}]}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        parts: list[dict[str, object]] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ANSWER}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}},
        ]
        common = {"id": "c", "object": "chat.completion.chunk", "model": _MODEL, "created": 0}
        lines = [f"data: {json.dumps({**common, **part})}\n\n" for part in parts]
        self._send("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def chat_server() -> Iterator[str]:
    """Serve until the end of the block; yields the address for ``--engine chat:``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
