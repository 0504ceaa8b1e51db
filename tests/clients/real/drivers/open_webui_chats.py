"""Open WebUI, driven by its API: python open_webui_chats.py PROGRAM. Prints one line of JSON.

Starts its server with an empty database, signs up the first user, and asks as its page does.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from http.client import HTTPException
from typing import Any

STARTS_S = 240
ANSWERS_S = 60
PASSWORD = "Slip-42-ring!"
TOOL = '''\
class Tools:
    def get_weather(self, city: str) -> str:
        """
        Weather of a city.
        :param city: The city
        """
        return f"sunny in {city}"
'''
MODEL = os.environ["OPENAI_MODEL"]


class Site:
    """A running Open WebUI."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.token = ""

    def call(self, path: str, body: Any = None) -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read().decode()
        return text if text.startswith("data:") else json.loads(text)

    def wait(self) -> None:
        """Until it serves."""
        until = time.monotonic() + STARTS_S
        while True:
            try:
                self.call("/health")
                return
            except (OSError, HTTPException):
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def sign_up(self) -> None:
        user = {"name": "t", "email": "t@example.com", "password": PASSWORD}
        self.token = self.call("/api/v1/auths/signup", user)["token"]

    def chat(self, words: str, **fields: Any) -> tuple[Any, Any]:
        """Ask in a new chat; return its answer and the chat, both as they are stored."""
        asked, answered = str(uuid.uuid4()), str(uuid.uuid4())
        messages = {
            asked: {
                "id": asked,
                "parentId": None,
                "childrenIds": [answered],
                "role": "user",
                "content": words,
            },
            answered: {
                "id": answered,
                "parentId": asked,
                "childrenIds": [],
                "role": "assistant",
                "content": "",
            },
        }
        history = {"messages": messages, "currentId": answered}
        new = {"title": "New Chat", "models": [MODEL], "history": history, "messages": []}
        chat = self.call("/api/v1/chats/new", {"chat": new})["id"]
        self.call(
            "/api/chat/completions",
            {
                "model": MODEL,
                "stream": True,
                "stream_options": {"include_usage": True},
                "messages": [{"role": "user", "content": words}],
                "chat_id": chat,
                "id": answered,
                "session_id": "s",
                **fields,
            },
        )
        until = time.monotonic() + ANSWERS_S
        while time.monotonic() < until:
            found = self.call(f"/api/v1/chats/{chat}")
            answer = found["chat"]["history"]["messages"][answered]
            has_title = not fields.get("background_tasks") or found["title"] != "New Chat"
            if answer.get("error") or (answer.get("done") and has_title):
                return answer, found
            time.sleep(0.2)
        raise TimeoutError(json.dumps(found))


def with_tool(site: Site) -> dict[str, Any]:
    """A chat with a tool that Open WebUI runs, and the title that the model gives it."""
    site.call(
        "/api/v1/tools/create",
        {"id": "weather", "name": "weather", "content": TOOL, "meta": {"description": "Weather"}},
    )
    answer, chat = site.chat(
        "weather in Paris?",
        tool_ids=["weather"],
        params={"function_calling": "native"},
        background_tasks={"title_generation": True},
    )
    return {"answer": answer, "title": chat["title"]}


def direct(site: Site) -> dict[str, Any]:
    """What programs ask Open WebUI for: models, and answers, plain and streamed."""
    models = [model["id"] for model in site.call("/api/models")["data"]]
    question = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    plain = site.call("/api/chat/completions", question)
    streamed = site.call("/api/chat/completions", {**question, "stream": True})
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    return {
        "models": models,
        "plain": plain["choices"][0]["message"]["content"],
        "streamed": "".join(deltas),
    }


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def main(program: str) -> None:
    port = free_port()
    command = [program, "serve", "--host", "127.0.0.1", "--port", str(port)]
    with open("open-webui.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            site = Site(port)
            site.wait()
            site.sign_up()
            failed = site.chat("Hello")[0]
            print(json.dumps({"failed": failed, **direct(site), **with_tool(site)}))
        finally:
            server.terminate()
            server.wait()


main(sys.argv[1])
