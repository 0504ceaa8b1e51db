"""WebSockets to an upstream: one per chain, kept while its responses may be continued.

An upstream remembers a response for the socket that made it, and promises no more than the latest of each
lane. So a continuation goes where its parent was made: on its lane where it is the latest there, else on
another lane of that socket. A lane is taken again for something else once nobody can continue what it made
last.

One task reads a socket and hands each lane its events. It waits while a lane has too many, and so the
upstream waits for the slowest reader of its socket.
"""

import asyncio
import weakref
from collections import deque

import aiohttp
import msgspec
from aiohttp import WSMsgType

from slipring.engines.responses import faults
from slipring.engines.responses.answer import TERMINAL
from slipring.engines.responses.faults import Lost, NoLanes
from slipring.engines.responses.positions import Position
from slipring.errors import ApiError, ServerError

MOST_FRAME_BYTES = 16 * 2**20
"""What upstreams take in one message."""
_MOST_UNREAD = 32
_MOST_LANES = 32
_MOST_IN_FLIGHT = 16

Frame = tuple[str, str]
"""An event's type, and its JSON."""


class _Outline(msgspec.Struct):
    type: str = ""
    stream_id: str | None = None


_outline = msgspec.json.Decoder(_Outline)


class Lane:
    """An ordered stream of responses on a socket."""

    __slots__ = (
        "_arrived",
        "_fault",
        "_frames",
        "_taken",
        "begun",
        "busy",
        "heard",
        "latest",
        "name",
        "over",
        "read",
    )

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.latest: weakref.ref[Position] | None = None
        self.busy = False
        """A response is being made on it, whether somebody wants it or not."""
        self.read = False
        """Somebody wants it."""
        self.heard = False
        """Something has been said on it since it was taken."""
        self.begun = False
        """The response has been announced."""
        self.over = False
        """The response has come to its end."""
        self._frames: deque[Frame] = deque()
        self._fault: ApiError | None = None
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_free(self) -> bool:
        """Whether nobody can continue what it made last."""
        return not self.busy and (self.latest is None or self.latest() is None)

    def take(self) -> None:
        self.busy = self.read = True
        self.heard = self.begun = self.over = False
        self._fault = None
        self._frames.clear()

    async def put(self, frame: Frame) -> None:
        """Hand over an event; waits while there are many unread."""
        self.heard = True
        self.begun = self.begun or frame[0] == "response.created"
        self.over = self.over or frame[0] in TERMINAL
        self._frames.append(frame)
        self._arrived.set()
        while len(self._frames) >= _MOST_UNREAD and self.read:
            self._taken.clear()
            await self._taken.wait()

    def fail(self, fault: ApiError) -> None:
        """There will be no more events."""
        self._fault = fault
        self._arrived.set()

    async def get(self) -> list[Frame]:
        """The events that have come since; waits for one."""
        while not self._frames:
            if self._fault is not None:
                raise self._fault
            self._arrived.clear()
            await self._arrived.wait()
        frames = list(self._frames)
        self._frames.clear()
        self._taken.set()
        return frames

    def leave(self) -> None:
        """Nobody reads on."""
        self.read = False
        self._frames.clear()
        self._taken.set()


class Socket:
    """One connection to the upstream."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, now: float) -> None:
        self._ws = ws
        self._lanes: dict[str | None, Lane] = {None: Lane(None)}
        self.opened_at = self.used_at = self.heard_at = self.pinged_at = now
        self.retired = False
        """Takes no more responses: too old, or the upstream has said so."""
        self.closing: asyncio.Task[object] | None = None
        self._reader = asyncio.create_task(self._read())
        self._pinging: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self.closing is None

    @property
    def in_flight(self) -> int:
        return sum(lane.busy for lane in self._lanes.values())

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for what is made on it."""
        return any(lane.read for lane in self._lanes.values())

    @property
    def is_free(self) -> bool:
        """Whether nothing that was made here can be continued."""
        return all(lane.is_free for lane in self._lanes.values())

    def take_for(self, position: Position, *, fork: bool, lanes: bool) -> Lane | None:
        """The lane on which to go on from a response that was made here; None: there is none left."""
        lane = position.lane
        if lane is None or fork or lane.busy or lane.latest is None or lane.latest() is not position:
            lane = self._another() if lanes else None
        if lane is not None:
            lane.take()
        return lane

    def take_first(self) -> Lane:
        """The lane for the first response of a chain."""
        lane = self._lanes[None]
        lane.take()
        return lane

    def _another(self) -> Lane | None:
        if self.in_flight >= _MOST_IN_FLIGHT:
            return None
        free = next((lane for name, lane in self._lanes.items() if name is not None and lane.is_free), None)
        if free is None and len(self._lanes) <= _MOST_LANES:
            name = f"fork-{len(self._lanes)}"
            free = self._lanes[name] = Lane(name)
        return free

    async def send(self, frame: bytes) -> None:
        """Send a create. Raises ``Lost`` where nobody is there any more."""
        try:
            await self._ws.send_frame(frame, WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            self.drop()
            raise Lost from error

    def give_back(self, lane: Lane, position: Position | None) -> None:
        """A job is done with its lane. If its response has not ended there is no way to stop it but to close
        the socket, which is done where nobody else has one on it; else the rest is read and dropped."""
        self.used_at = asyncio.get_running_loop().time()
        lane.latest = weakref.ref(position) if position is not None else None
        lane.leave()
        if lane.over:
            lane.busy = False
        elif not self.is_wanted:
            self.drop()
        if self.retired and not self.is_wanted:
            self.drop()

    def ping(self, now: float, silence_s: float) -> None:
        """Keep an idle socket open, and find out whether it is."""
        if now - self.heard_at > 2 * silence_s and self.pinged_at > self.heard_at:
            self.drop()
        elif now - max(self.heard_at, self.pinged_at) > silence_s:
            self.pinged_at = now
            self._pinging = asyncio.create_task(self._ping())

    def drop(self) -> None:
        """Close it, now and without waiting for the upstream."""
        if self.closing is None:
            self._reader.cancel()
            self._end(Lost())
            self.closing = asyncio.create_task(self._ws.close())

    async def _ping(self) -> None:
        try:
            await self._ws.ping()
        except (aiohttp.ClientError, OSError):
            self.drop()

    async def _read(self) -> None:
        fault: ApiError = Lost()
        try:
            while True:
                message = await self._ws.receive()
                self.heard_at = asyncio.get_running_loop().time()
                if message.type is WSMsgType.TEXT:
                    await self._hand_over(message.data)
                elif message.type is WSMsgType.PING:
                    await self._ws.pong(message.data)
                elif message.type is not WSMsgType.PONG:
                    break
        except (aiohttp.ClientError, OSError):
            pass  # gone, as below
        except msgspec.DecodeError:
            fault = ServerError("The engine's answer cannot be read.")
        finally:
            self._end(fault)
        if self.closing is None:
            self.closing = asyncio.create_task(self._ws.close())

    async def _hand_over(self, payload: str) -> None:
        outline = _outline.decode(payload)
        if outline.stream_id is None and self._is_without_lanes(outline.type):
            return
        lane = self._lanes.get(outline.stream_id)
        if outline.type == "error" and faults.code_of(payload) == "websocket_connection_limit_reached":
            # It is about the connection: what has begun may still come to its end.
            self.retired = True
            if lane is not None and lane.heard:
                return
        if lane is None or not lane.busy:
            return
        if lane.read:
            await lane.put((outline.type, payload))
        elif outline.type in TERMINAL:
            lane.busy = False

    def _is_without_lanes(self, kind: str) -> bool:
        """Whether an event without a lane must be that of a fork: then this upstream knows no lanes, and what
        comes cannot be told apart any more."""
        default = self._lanes[None]
        misplaced = (kind == "error" and not default.busy) or (
            kind == "response.created" and (not default.busy or default.begun)
        )
        unheard = [lane for lane in self._lanes.values() if lane.name and lane.busy and not lane.heard]
        if not misplaced or not unheard:
            return False
        self.retired = True
        for lane in unheard:
            lane.fail(NoLanes())
        if default.busy and not default.over:
            default.fail(ServerError("The engine's answer cannot be read."))
        return True

    def _end(self, fault: ApiError) -> None:
        for lane in self._lanes.values():
            if lane.busy:
                lane.fail(fault)
                lane.busy = False
