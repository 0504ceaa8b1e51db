"""The definition of an attack, and its tools: a server, a key, and checks."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.attack.limits import LIMITS, PATIENCE_S
from tests.attack.server import ATTACKER_KEY, Server, Spec
from tests.attack.sockets import GONE, Answer, Json, Socket, connect, connect_websocket, post, request_head

_ANSWER_S = 30.0
_LOOK_S = 0.05

Run = Callable[["Stage"], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """One attack. The docstring of its function states what is done and what must hold."""

    name: str
    group: str
    sentence: str
    run: Run
    spec: Spec = field(default_factory=Spec)
    quick: bool = False
    """Whether it is short enough for `make test`."""
    peak_mib: int = 512
    """How much more memory the server may hold during the attack than before."""
    event_ms: float | None = None
    """Limit of the victim's time per event at the 99th percentile, if not the default."""
    victim_is_cut: bool = False
    """Whether the attack stops the server, so that the victim cannot be served until the end."""


class Registry:
    """The attacks of one group."""

    def __init__(self, group: str, **usual: Any) -> None:
        self.group = group
        self.attacks: list[Attack] = []
        self._usual = usual

    def __call__(self, **options: Any) -> Callable[[Run], Run]:
        """Declare a function as an attack, with these fields of ``Attack`` and ``Spec``."""
        given = {**self._usual, **options}
        of_spec = {
            name: given.pop(name) for name in ("engine", "limits", "flags", "descriptors") if name in given
        }

        def declare(run: Run) -> Run:
            sentence = " ".join((run.__doc__ or "").split())
            assert sentence, f"{run.__name__} has no docstring"
            name = run.__name__.replace("_", "-")
            self.attacks.append(Attack(name, self.group, sentence, run, Spec(**of_spec), **given))
            return run

        return declare


class Stage:
    """An attack in progress: its tools and its findings."""

    def __init__(self, server: Server, spec: Spec, seed: int) -> None:
        self.server = server
        self.random = Random(seed)
        self.key = ATTACKER_KEY
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.wanted_in_log: list[str] = []
        self._limits: Mapping[str, float] = {**LIMITS, **spec.limits}
        self._log_size = len(server.log())

    def limit(self, name: str) -> float:
        return self._limits[name]

    # Checks.

    def check(self, condition: object, message: str) -> None:
        if not condition:
            self.faults.append(message)

    def note(self, text: str) -> None:
        """Add a remark that is shown beside the verdict."""
        self.notes.append(text)

    def refused(
        self,
        answer: Answer | Json | None,
        statuses: Iterable[int],
        *,
        code: str | None = None,
        param: str = "",
    ) -> None:
        """Require a refusal in the API's format. ``param`` is a pattern that its field must match from the
        start; empty: any field."""
        status, error = _read(answer)
        if status not in statuses or not error:
            wanted = "/".join(map(str, statuses))
            self.faults.append(f"expected {wanted}, got {_shown(answer)}")
        elif code is not None and error["code"] != code:
            self.faults.append(f"expected the code {code}, got {_shown(answer)}")
        elif param and not re.match(param, error.get("param") or ""):
            self.faults.append(f"expected the field {param}, got {_shown(answer)}")

    def answered(self, answer: Answer | Json | None) -> None:
        """Require an answer: a response, or an error in the API's format."""
        status, error = _read(answer)
        if status != 200 and not error:
            self.faults.append(f"neither served nor refused: {_shown(answer)}")

    def log_since(self) -> str:
        """Return what the server has logged since the attack began."""
        return self.server.log()[self._log_size :]

    async def descriptors_fall(self, to: int, within_s: float) -> bool:
        """Return whether the server releases its descriptors within this time plus the usual tolerance."""
        return await self.comes_true(lambda: self.server.descriptors() <= to, within_s + PATIENCE_S)

    async def comes_true(self, holds: Callable[[], bool], within_s: float) -> bool:
        end = asyncio.get_running_loop().time() + within_s
        while not holds():
            if asyncio.get_running_loop().time() > end:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    # Actions of attackers.

    async def post(
        self, body: Json | bytes, path: str = "/responses", key: str | None = None
    ) -> Answer | None:
        """Send one POST on a new connection. None: the server closed it without an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.exchange(post(path, data, key or self.key))

    async def get(self, path: str, key: str | None = None) -> Answer | None:
        return await self.exchange(request_head("GET", path, "Connection: close", key=key or self.key))

    async def exchange(self, data: bytes, within_s: float = _ANSWER_S) -> Answer | None:
        """Send bytes on a new connection, and read an answer."""
        connection = None
        try:
            async with asyncio.timeout(within_s):
                connection = await connect(self.server)
                # Concurrently, because the server may answer before the end of the request.
                sending = asyncio.ensure_future(connection.send(data))
                try:
                    return await connection.answer()
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except GONE:
            return None
        finally:
            if connection is not None:
                connection.close()

    async def turn(self, socket: Socket, *, within_s: float = _ANSWER_S, **create: Any) -> Json | None:
        """Create one response over a WebSocket; return its last event. None: there was none in this time."""
        try:
            async with asyncio.timeout(within_s):
                await socket.create(**create)
                return await socket.until("response.completed", "response.failed", "response.incomplete")
        except GONE:
            return None

    async def websocket(self, *lines: str, key: str | None = None) -> Socket:
        async with asyncio.timeout(_ANSWER_S):
            return await connect_websocket(self.server, key or self.key, *lines)

    async def stored(self, body: Json) -> str:
        """Create and store a response; return its id."""
        answer = await self.post(body)
        if answer is None or answer.status != 200:
            raise RuntimeError(f"a response that the attack needs was refused: {_shown(answer)}")
        return str(json.loads(answer.body)["id"])


def _read(answer: Answer | Json | None) -> tuple[int, Json]:
    """Return the status of an answer or event, and its error."""
    if answer is None:
        return 0, {}
    if isinstance(answer, Answer):
        return answer.status, answer.error
    if answer["type"] == "error":
        return int(answer.get("status", 0)), dict(answer["error"])
    if answer["type"] == "response.failed":
        return 500, dict(answer["response"]["error"])
    return (200 if answer["type"] in ("response.completed", "response.incomplete") else 0), {}


def _shown(answer: Answer | Json | None) -> str:
    if answer is None:
        return "nothing"
    if isinstance(answer, Answer):
        return f"{answer.status} {answer.body[:300].decode(errors='replace')}"
    return json.dumps(answer)[:300]
