"""Grammars that the sandbox has compiled and llama.cpp rejects: answers without them are not passed on."""

from typing import Any

import pytest

from slipring.engines.llama import engine as llama_engine
from slipring.engines.llama.child_process import RejectedGrammars
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from tests.harness import serve

ERROR = "0.11.518.702 E llg error: 2(15): Expected token ']', found '\\n'"
LAUNCHED = "0.11.518.990 I slot launch_slot_: id  2 | task 33 | processing task, is_child = 0"
OTHER = "0.11.518.800 I srv  log_server_r: done request: POST /completion 127.0.0.1 200"
TIMES = "0.11.519.265 I slot print_timing: id  0 | task 7 | prompt eval time = 10.27 ms"
SMALL = {"temperature": 0, "max_output_tokens": 8, "store": False}
FORMAT: Any = {"text": {"format": {"type": "json_object"}}}


@pytest.mark.parametrize(
    ("lines", "slots"),
    [
        ([ERROR, "   1 | %llguidance {}", OTHER, LAUNCHED], {2}),
        ([LAUNCHED], set()),
        ([ERROR, TIMES, LAUNCHED], set()),
        ([ERROR, LAUNCHED.replace("  2", " 12"), ERROR, LAUNCHED], {2, 12}),
    ],
    ids=["at the beginning", "accepted", "within an answer", "two"],
)
def test_the_log_names_the_slots(lines: list[str], slots: set[int]) -> None:
    found = RejectedGrammars()
    for line in lines:
        found.read(line)
    assert {slot for slot in range(20) if found.take(slot)} == slots
    assert not any(found.take(slot) for slot in range(20))


async def test_an_answer_without_its_grammar_fails(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the llguidance of the sandbox took a grammar that llama.cpp's does not take."""
    engine = LlamaEngine(LlamaOptions(model=tiny_path, slots=1, context=2048, threads=1))

    async def broken(*_: Any, **__: Any) -> str:
        return "%llguidance {}\nstart: UNDEFINED\n"

    async with serve(engine) as server, server.connect() as socket:
        with monkeypatch.context() as patched:
            patched.setattr(llama_engine, "grammar_of", broken)
            # Long enough for the log, which a thread of llama.cpp writes, to arrive before the end.
            failed = await socket.response(input="x", **FORMAT, **{**SMALL, "max_output_tokens": 1800})
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert failed["error"]["message"] == "The engine does not enforce the grammar of this answer."
        # llama.cpp's log may arrive after the first tokens.
        assert all(item["status"] == "incomplete" for item in failed["output"])
        assert "does not enforce the grammar of an answer" in caplog.text
        assert (await socket.response(input="x", **FORMAT, **SMALL))["status"] == "incomplete"
