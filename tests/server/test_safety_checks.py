"""Safety checks on a real server: over every transport, with slow and dying checks, and after a restart."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipring.config.tables import CheckEntry
from slipring.core.checks.answer_gate import MOST_BYTES
from slipring.core.checks.verdicts import Subject
from slipring.core.generation import Text
from tests.harness import TERMINAL, PuppetEngine, Running, serve

_GUARDS: dict[str, "Guard | Hanging"] = {}


class Guard:
    """A check that flags texts that contain "bad". It answers when the test lets it."""

    def __init__(self, name: str) -> None:
        self.inspected: list[str] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = False
        self.flags: Callable[[Subject], bool] = lambda subject: "bad" in subject.text
        _GUARDS[name] = self

    async def __call__(self, subject: Subject) -> bool:
        self.inspected.append(subject.text)
        self.asked.set()
        await self.may_answer.wait()
        if self.fails:
            raise RuntimeError("out of order")
        return self.flags(subject)


def guard(name: str) -> "Guard | Hanging":
    """The factory of the checks of this module."""
    return _GUARDS[name]


def entry(name: str = "guard", **fields: Any) -> CheckEntry:
    fields = {"action": "block", "mode": "hold", "on_error": "closed", "timeout_s": 60.0, **fields}
    settings = json.dumps({"name": name})
    return CheckEntry(name, f"python:{__name__}:guard", settings=settings, **fields)


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


async def test_deltas_wait_for_the_input_check_which_runs_beside_the_engine() -> None:
    engine, check = PuppetEngine(), Guard("guard")
    check.may_answer.clear()
    async with serve(engine, checks=(entry(subjects=("message",)),)) as server, server.connect() as socket:
        await socket.create(input="hello", stream_options={"include_obfuscation": True})
        performance = await engine.next()
        await asyncio.wait_for(check.asked.wait(), 300)
        performance.say("one", "two")
        await asyncio.wait_for(performance.pulled.acquire(), 300)
        await asyncio.wait_for(performance.pulled.acquire(), 300)
        assert types(await socket.until("response.in_progress")) == ["created", "in_progress"]
        check.may_answer.set()
        events = await socket.until("response.output_text.delta")
        assert events[-1]["delta"] == "one"
        assert "obfuscation" in events[-1]
        performance.finish()
        (*_, last) = await socket.until(*TERMINAL)
        assert last["response"]["moderation"]["input"]["flagged"] is False


@pytest.mark.parametrize("accepts", [True, False])
async def test_blocked_input_stops_the_engine_and_the_next_message_goes_on(accepts: bool) -> None:
    engine, check = PuppetEngine(), Guard("guard")
    engine.accepts = accepts
    async with serve(engine, checks=(entry(subjects=("message",)),)) as server, server.connect() as socket:
        await socket.create(input="hello", store=False)
        performance = await engine.next()
        performance.say("hi")
        performance.finish()
        (*_, first) = await socket.until(*TERMINAL)
        check.may_answer.clear()
        await socket.create(input="bad", store=False, previous_response_id=first["response"]["id"])
        performance = await engine.next()
        if accepts:
            await socket.until("response.in_progress")
        check.may_answer.set()
        (*_, last) = await socket.until(*TERMINAL, "error")
        error = last["response"]["error"] if accepts else last["error"]
        assert error["code"] == "invalid_prompt"
        await asyncio.wait_for(performance.stopped.wait(), 300)
        await socket.create(input="sorry", store=False, previous_response_id=first["response"]["id"])
        performance = await engine.next()
        performance.say("ok")
        performance.finish()
        (*_, last) = await socket.until(*TERMINAL, "error")
        assert last["type"] == "response.completed"
        assert check.inspected == ["hello", "bad", "sorry"]


async def test_a_remembered_verdict_holds_behind_the_same_texts_only() -> None:
    """A check that reads three texts with each one: "bad" passes alone, and not behind "so"."""
    check = Guard("guard")
    check.flags = lambda subject: subject.text == "bad" and "so" in subject.context
    so, word, no = (
        {"role": "user", "content": "so"},
        {"role": "user", "content": "bad"},
        {"role": "user", "content": "no"},
    )
    async with serve(checks=(entry(context=3, subjects=("message",)),)) as server:
        for _ in range(2):
            assert (await server.post(input=[word], store=False))[0] == 200
            assert (await server.post(input=[so, word], store=False))[0] == 400
            assert (await server.post(input=[no, word], store=False))[0] == 200
    assert check.inspected == ["bad", "so", "bad", "no", "bad"]


async def test_every_transport_has_the_same_checks() -> None:
    check = Guard("guard")
    async with serve(checks=(entry(subjects=("message",)),)) as server:
        status, body = await server.post(input="bad", store=False)
        assert body["error"]["code"] == "invalid_prompt"
        assert status == 400
        events = await server.stream(input="also bad", store=False)
        assert events[-1]["type"] in ("response.failed", "error")
        status, body = await server.post(input="so bad", background=True)
        assert status == 200
        run = await _ended(server, body["id"])
        assert run["error"]["code"] == "invalid_prompt"
        assert "so bad" not in json.dumps(run["error"])
        status, body = await server.post(input="fine", store=False)
        assert body["status"] == "completed"
        assert check.inspected == ["bad", "also bad", "so bad", "fine"]


async def _ended(server: Running, response_id: str) -> dict[str, Any]:
    """The background response, once it has ended."""
    headers = {"Authorization": "Bearer test-key"}
    url = f"{server.url}/responses/{response_id}?stream=true"
    async with server.http.get(url, headers=headers) as answer:
        await answer.read()  # until the last event
    async with server.http.get(f"{server.url}/responses/{response_id}", headers=headers) as answer:
        body: dict[str, Any] = await answer.json()
        return body


async def test_a_resent_history_is_inspected_once() -> None:
    check = Guard("guard")
    async with serve(checks=(entry(),)) as server:
        history: list[dict[str, Any]] = []
        for number in range(4):
            history.append({"role": "user", "content": f"question {number}"})
            _, body = await server.post(input=history, store=False)
            assert body["status"] == "completed"
            history += body["output"]
        questions = [text for text in check.inspected if text.startswith("question")]
        assert questions == [f"question {number}" for number in range(4)]


async def test_a_refused_message_does_not_end_a_conversation(tmp_path: Path) -> None:
    """Over every transport, with the whole history and by delta; nothing refused is stored."""
    engine, check = PuppetEngine(), Guard("guard")
    store, checks = f"sqlite:{tmp_path}/store.db", (entry(before=True, subjects=("message",)),)

    async def answered(asking: Any) -> Any:
        """What a request gets whose engine answers; and what the engine has read."""
        task = asyncio.ensure_future(asking)
        performance = await engine.next()
        performance.say("ok")
        performance.finish()
        texts = [item.raw.decode() for item in performance.job.context()]
        assert not any("apples" in text for text in texts)
        assert sum("[Withheld: the safety check 'guard'" in text for text in texts) == 1
        return await task

    async with serve(engine, checks=checks, store=store) as server, server.connect() as socket:
        bad = {"role": "user", "content": "bad apples"}
        status, _ = await server.post(input=[bad])
        assert status == 400
        _, body = await answered(server.post(input=[bad, {"role": "user", "content": "sorry"}]))
        assert body["moderation"]["input"]["categories"] == {"guard": True, "withheld": True}
        events = await answered(server.stream(input=[bad, {"role": "user", "content": "again"}]))
        assert events[-1]["type"] == "response.completed"
        await socket.create(input=[bad, {"role": "user", "content": "over a socket"}])
        (*_, last) = await answered(socket.until(*TERMINAL))
        await socket.create(input="go on", previous_response_id=last["response"]["id"])
        (*_, last) = await answered(socket.until(*TERMINAL))
        assert last["response"]["moderation"]["input"]["flagged"] is False
        _, conversation = await _call(server, "POST", "conversations", {})
        conversation = {"conversation": conversation["id"]}
        status, _ = await server.post(input=[bad], **conversation)
        assert status == 400
        await answered(server.post(input=[bad, {"role": "user", "content": "sorry"}], **conversation))
        await answered(server.post(input="go on", **conversation))
        _, page = await _call(server, "GET", f"conversations/{conversation['conversation']}/items")
        assert "apples" not in json.dumps(page)
        _, page = await _call(server, "GET", f"responses/{body['id']}/input_items")
        assert [item["content"][0]["text"][:9] for item in page["data"]] == ["sorry", "[Withheld"]
    assert check.inspected == ["bad apples", "sorry", "again", "over a socket", "go on"]
    assert b"sorry" in _kept(tmp_path)
    assert b"apples" not in _kept(tmp_path)


def _kept(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("store.db*"))


async def _call(server: Running, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": "Bearer test-key"}
    async with server.http.request(method, f"{server.url}/{path}", headers=headers, json=body) as answer:
        return answer.status, await answer.json()


async def test_a_full_gate_stops_pulling_the_engine() -> None:
    engine, check = PuppetEngine(), Guard("guard")
    check.may_answer.clear()
    long = "word " * (MOST_BYTES // 5)
    async with serve(engine, checks=(entry(subjects=("answer",)),)) as server, server.connect() as socket:
        await socket.create(input="hello")
        performance = await engine.next()
        performance.emit(Text(long))
        performance.emit(Text("more. "))
        performance.finish()
        await asyncio.wait_for(check.asked.wait(), 300)
        for _ in range(3):  # until the second text was asked for, and not further
            if performance.cues.qsize() == 1:
                break
            await asyncio.wait_for(performance.pulled.acquire(), 300)
        assert performance.cues.qsize() >= 1
        check.may_answer.set()
        (*_, last) = await socket.until(*TERMINAL)
        assert last["response"]["output"][0]["content"][0]["text"] == f"{long}more. "


async def test_a_check_that_dies_or_hangs_fails_the_turn_and_the_server_says_so() -> None:
    check = Guard("guard")
    async with serve(checks=(entry(timeout_s=0.01),)) as server:
        check.fails = True
        status, body = await server.post(input="one", store=False)
        assert (status, body["error"]["code"]) == (503, "service_unavailable")
        assert "guard" in body["error"]["message"]
        check.fails = False
        check.may_answer.clear()
        status, body = await server.post(input="two", store=False)
        assert (status, body["error"]["code"]) == (503, "service_unavailable")


class Hanging:
    """A plain function, which runs in a thread: texts that begin with "hang" keep it until the test ends."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, subject: Subject) -> bool:
        if subject.text.startswith("hang"):
            self.begun.release()
            self.may_end.wait()
        return "bad" in subject.text


async def test_a_function_that_hangs_for_one_tenant_answers_the_others() -> None:
    _GUARDS["guard"] = check = Hanging()
    checks = (entry(at_once=2, subjects=("message",)),)
    keys = {"one": "key-one", "two": "key-two"}
    async with serve(checks=checks, api_key=tuple(f"{name}:{key}" for name, key in keys.items())) as server:
        hanging = [
            asyncio.create_task(server.post(key=keys["one"], input=f"hang {n}", store=False))
            for n in range(4)
        ]
        try:
            for _ in range(2):
                assert await asyncio.to_thread(check.begun.acquire, timeout=300)
            for text, expected in (("good", "completed"), ("bad", "failed"), ("good", "completed")):
                events = await server.stream(key=keys["two"], input=text, store=False)
                assert events[-1]["response"]["status"] == expected
            assert not any(task.done() for task in hanging)
        finally:
            check.may_end.set()
        assert [status for status, _ in await asyncio.gather(*hanging)] == [200] * 4


async def test_a_client_that_leaves_ends_the_inspection() -> None:
    engine, check = PuppetEngine(), Guard("guard")
    check.may_answer.clear()
    async with serve(engine, checks=(entry(),)) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="hello", store=False)
            performance = await engine.next()
            await asyncio.wait_for(check.asked.wait(), 300)
        await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_an_audit_outlives_its_request_and_a_restart(tmp_path: Path) -> None:
    check = Guard("guard")
    check.may_answer.clear()
    store = f"sqlite:{tmp_path}/store.db"
    checks = (entry(mode="audit", subjects=("message",)),)
    async with serve(checks=checks, store=store) as server:
        _, first = await server.post(input="bad")
        assert first["status"] == "completed"
        _, second = await server.post(input="fine", previous_response_id=first["id"])
        assert second["status"] == "completed"
        check.may_answer.set()
        await server.service.audits.wait()
        status, body = await server.post(input="go on", previous_response_id=second["id"])
        assert (status, body["error"]["code"]) == (400, "invalid_prompt")
    async with serve(checks=checks, store=store) as server:
        for response in (first, second):
            status, body = await server.post(input="go on", previous_response_id=response["id"])
            assert (status, body["error"]["code"]) == (400, "invalid_prompt")


async def test_a_server_that_stops_waits_for_audits(tmp_path: Path, monkeypatch: Any) -> None:
    check = Guard("guard")
    check.may_answer.clear()
    store = f"sqlite:{tmp_path}/store.db"
    checks = (entry(mode="audit", subjects=("message",)),)
    async with serve(checks=checks, store=store) as server:
        _, first = await server.post(input="bad")
        await asyncio.wait_for(check.asked.wait(), 300)
        service = server.service
        wait = service.audits.wait

        async def answer_and_wait() -> None:
            check.may_answer.set()
            await wait()

        monkeypatch.setattr(service.audits, "wait", answer_and_wait)
    assert (service.audits.refused, service.audits.lost) == (1, 0)
    async with serve(checks=checks, store=store) as server:
        status, body = await server.post(input="go on", previous_response_id=first["id"])
        assert (status, body["error"]["code"]) == (400, "invalid_prompt")


async def test_audits_that_do_not_end_within_the_drain_are_counted(caplog: Any) -> None:
    check = Guard("guard")
    check.may_answer.clear()
    async with serve(checks=(entry(mode="audit", subjects=("message",)),)) as server:
        await server.post(input="bad")
        await asyncio.wait_for(check.asked.wait(), 300)
        service = server.service
        server.server.stop_request.immediate.set()
    assert service.audits.lost == 1
    assert "1 audits had not ended" in caplog.text


async def test_a_request_can_ask_for_checks() -> None:
    Guard("guard")
    async with serve(checks=(entry(action="flag", mode="follow", subjects=("reasoning",)),)) as server:
        asked = {"model": "guard", "policy": {"input": {"mode": "block"}}}
        _, body = await server.post(input="bad", store=False, moderation=asked)
        assert body["error"]["code"] == "invalid_prompt"
        _, body = await server.post(input="fine", store=False, moderation={"model": "guard"})
        assert body["moderation"]["output"]["type"] == "moderation_result"
        status, body = await server.post(input="fine", moderation={"model": "nobody"})
        assert (status, body["error"]["param"]) == (400, "moderation.model")
