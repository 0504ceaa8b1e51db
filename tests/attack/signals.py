"""Signals that operators and service managers send."""

import asyncio
import os
import signal

from tests.attack.limits import PATIENCE_S
from tests.attack.sockets import connections, json_lines, request_head, websockets
from tests.attack.stage import Registry, Stage

attack = Registry("signals")
_HARMLESS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGWINCH)


@attack(quick=True)
async def harmless(stage: Stage) -> None:
    """SIGUSR1, SIGUSR2 and SIGPIPE during responses: the server and the responses continue."""
    for number in _HARMLESS:
        os.kill(stage.server.pid, number)
        await asyncio.sleep(0.1)
        if not stage.server.is_alive:
            stage.check(False, f"{signal.Signals(number).name} ended the server")
            return
    answer = await stage.post({"input": "go", "store": False})
    stage.check(answer is not None and answer.status == 200, "no turn is served afterwards")


@attack(victim_is_cut=True)
async def hang_up(stage: Stage) -> None:
    """SIGHUP is sent three times: the response in progress completes, and the server exits with 0."""
    async with websockets(stage.server, stage.key) as (socket,):
        await socket.create(input="go", store=False)
        await socket.until("response.created")
        for _ in range(3):
            os.kill(stage.server.pid, signal.SIGHUP)
        event = await socket.until("response.completed")
        stage.check(event["type"] == "response.completed", f"the running answer was lost: {str(event)[:200]}")
        await _ended(stage)


@attack(victim_is_cut=True)
async def stop_under_attack(stage: Stage) -> None:
    """SIGTERM while 50 connections are silent, 20 answers are unread and 20 bodies are unfinished: the server
    has exited when its drain time is over."""
    async with connections(stage.server, 70) as opened, websockets(stage.server, stage.key, 20) as sockets:
        for socket in opened[50:]:
            await socket.send(request_head("POST", "/responses", *json_lines(10**6), key=stage.key) + b"{")
        for socket in sockets:
            await socket.create(input="go", instructions="x" * 10**6, store=False)
        await asyncio.sleep(0.5)
        stage.server.process.terminate()
        await _ended(stage)


async def _ended(stage: Stage) -> None:
    """Require that the server exits in time, with the expected code."""
    seconds = stage.limit("drain_timeout_s") + PATIENCE_S
    ended = await stage.comes_true(lambda: not stage.server.is_alive, seconds)
    code = stage.server.process.returncode
    stage.check(ended, f"the server still runs after {seconds:g} s")
    stage.check(not ended or code == 0, f"it ended with {code}")
