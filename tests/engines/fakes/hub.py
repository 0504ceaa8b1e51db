"""A model hub on a port of this machine: lists the files of its repositories, and serves them with ranges.

It can cut an answer after some bytes, change a byte of it, ask for a token, and fail.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

COMMIT = "a" * 40
_HELD_FROM = 1 << 16
"""Longer contents than this are those of models."""


class FakeHub:
    """Serves ``repositories`` (files by path, by name) from ``running`` on."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.gated: set[str] = set()
        """Repositories that need the token ``hf_right``. Every other token is refused."""
        self.cuts: list[int] = []
        """Bytes after which the next answers with content are cut."""
        self.damages = False
        """Whether the first byte of every content is changed."""
        self.status = 0
        """With which every request is answered, if it is not 0."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and range of each request."""
        self.holds: threading.Event | None = None
        """Until which every content stops in its middle."""
        self.is_holding = threading.Event()
        """Set once a content has stopped in its middle."""
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve until the end of the block; yields the address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self.url
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def downloads(self, path: str) -> list[str]:
        """The ranges of the requests for the content of a file."""
        return [span for method, each, span in self.requests if method == "GET" and each.endswith(path)]


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one hub."""

    protocol_version = "HTTP/1.1"
    hub: ClassVar[FakeHub]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        parts = path.strip("/").split("/")
        is_list = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if is_list else parts[:2])
        files = self.hub.repositories.get(name, {})
        file = "/".join(parts[4:])
        if refusal := self._refusal(name):
            self._send(refusal[0], b"{}", {"X-Error-Code": refusal[1]})
        elif is_list:
            self._send(200, json.dumps(description(name, files)).encode())
        elif file not in files:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            self._send_file(files[file])

    def _refusal(self, name: str) -> tuple[int, str] | None:
        if self.hub.status:
            return self.hub.status, ""
        token = self.headers.get("Authorization")
        is_allowed = token == "Bearer hf_right"
        if token is not None and not is_allowed:
            return 401, ""  # of a public repository, too
        if name not in self.hub.repositories:
            return 401, "RepoNotFound"
        return (403, "GatedRepo") if name in self.hub.gated and not is_allowed else None

    def _send_file(self, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{digest}"',
            "Accept-Ranges": "bytes",
        }
        if self.hub.damages:
            content = bytes([content[0] ^ 255]) + content[1:]
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        is_cut = self.command == "GET" and bool(self.hub.cuts)
        self._send(206 if begin else 200, content[begin:], headers, self.hub.cuts.pop(0) if is_cut else None)

    def _send(
        self, status: int, content: bytes, headers: Mapping[str, str] = {}, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            if self.hub.holds is not None and len(content) > _HELD_FROM:
                self.wfile.write(content[: len(content) // 2])
                self.hub.is_holding.set()
                self.hub.holds.wait()
                self.close_connection = True
                return
            self.wfile.write(content[:cut])
        self.close_connection = cut is not None


def description(name: str, files: dict[str, bytes]) -> dict[str, object]:
    """A repository, as the hub's API describes it."""
    return {
        "id": name,
        "sha": COMMIT,
        "siblings": [
            {
                "rfilename": path,
                "size": len(content),
                "lfs": {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 1,
                },
            }
            for path, content in files.items()
        ],
    }
