"""Controls a headless Chromium over its DevTools socket."""

import asyncio
import base64
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

VARIABLE = "SLIPRING_TEST_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE_S = 300
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--no-proxy-server"),
    *("--remote-debugging-port=0", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"),
)


def chromium() -> str | None:
    """The program named by the variable, else one on PATH."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        """Errors and warnings in the console, exceptions, and failed requests."""
        self.requests: list[str] = []
        """URLs of all requests."""

    async def begin(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def open(self, url: str, *, width: int, height: int = 900, scheme: str = "light") -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        number = await self._send("Page.navigate", url=url)
        await self._until(lambda message: message.get("id") == number)
        await self._until(lambda message: message.get("method") == "Page.loadEventFired")

    async def ask(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Ask until the answer is true."""
        for _ in range(20 * _PATIENCE_S):
            if answer := await self.ask(expression):
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError(f"never true: {expression}")

    async def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    async def picture(self, *, whole: bool = True) -> bytes:
        """A screenshot as PNG."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    async def print(self) -> bytes:
        """The page as PDF."""
        answer = await self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = await self._send(method, **parameters)
        answer = await self._until(lambda message: message.get("id") == number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    async def _send(self, method: str, **parameters: Any) -> int:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **session})
        return number

    async def _until(self, is_it: Any) -> dict[str, Any]:
        while True:
            message = await self._socket.receive_json(timeout=_PATIENCE_S)
            self._note(message)
            if is_it(message):
                return dict(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@asynccontextmanager
async def tab(program: str) -> AsyncIterator[Tab]:
    """Run a browser with one page."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            *_FLAGS,
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            address = await asyncio.wait_for(_address(process.stderr), _PATIENCE_S)
            drain = asyncio.create_task(process.stderr.read())
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address, max_msg_size=0) as socket,
            ):
                opened = Tab(socket)
                await opened.begin()
                yield opened
                await socket.send_json({"id": 0, "method": "Browser.close"})
            await drain
            await asyncio.wait_for(process.wait(), _PATIENCE_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _address(errors: asyncio.StreamReader) -> str:
    """The URL of the DevTools socket, from the browser's output."""
    message = b""
    async for line in errors:
        message += line
        if found := re.search(rb"ws://\S+", line):
            return found[0].decode()
    raise AssertionError(f"Chromium did not start: {message.decode(errors='replace')}")
