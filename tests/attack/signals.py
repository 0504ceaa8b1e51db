"""Signals that operators and service managers send."""

import asyncio
import os
import signal

from tests.attack.stage import Registry, Stage

attack = Registry("signals")
_HARMLESS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGWINCH)


@attack(quick=True)
async def harmless(stage: Stage) -> None:
    """SIGHUP, SIGUSR1, SIGUSR2 and SIGPIPE in the middle of answers: the server goes on, and so do they."""
    for number in _HARMLESS:
        os.kill(stage.server.pid, number)
        await asyncio.sleep(0.1)
        if not stage.server.is_alive:
            stage.check(False, f"{signal.Signals(number).name} ended the server")
            return
    answer = await stage.post({"input": "go", "store": False})
    stage.check(answer is not None and answer.status == 200, "no turn is served afterwards")


@attack(victim_is_cut=True)
async def stop_under_attack(stage: Stage) -> None:
    """SIGTERM while 50 connections are silent, 20 answers are unread and 20 bodies are unfinished: the server
    has ended when its drain time is over."""
    from tests.attack.sockets import connections, json_lines, request_head, websockets

    async with connections(stage.server, 70) as opened, websockets(stage.server, stage.key, 20) as sockets:
        for socket in opened[50:]:
            await socket.send(request_head("POST", "/responses", *json_lines(10**6), key=stage.key) + b"{")
        for socket in sockets:
            await socket.create(input="go", instructions="x" * 10**6, store=False)
        await asyncio.sleep(0.5)
        stage.server.process.terminate()
        limit = stage.limit("drain_timeout_s")
        ended = await stage.comes_true(lambda: not stage.server.is_alive, limit + 8)
        stage.check(ended, f"the server still runs {limit + 8:g} s after SIGTERM")
        code = stage.server.process.returncode
        stage.check(not ended or code == 0, f"it ended with {code}")
