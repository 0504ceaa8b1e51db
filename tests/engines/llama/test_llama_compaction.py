"""Compaction with the real embedded model: cached tokens are not prefilled again."""

import asyncio
from typing import Any

import pytest

from slipring.engines.llama.engine import LlamaEngine
from tests.harness import TERMINAL
from tests.model import ServeModel

GREEDY = {"temperature": 0, "max_output_tokens": 12, "store": False}
SENTENCE = "Tell me about the weather, in short words, as if I were five years old. "


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


async def test_a_summary_and_the_compacted_chain_prefill_only_new_tokens(
    tiny: ServeModel,
) -> None:
    async with tiny() as server, server.connect() as socket:
        first = await socket.response(input=SENTENCE * 6, **GREEDY)
        length = first["usage"]["total_tokens"]
        managed = [{"type": "compaction", "compact_threshold": length + 100}]
        asked = {**GREEDY, "context_management": managed}
        second = await socket.response(input="And now?", previous_response_id=first["id"], **asked)
        assert [item["type"] for item in second["output"]] == ["message"]

        managed = [{"type": "compaction", "compact_threshold": length}]
        asked = {**GREEDY, "context_management": managed}
        await socket.create(input="And then?", previous_response_id=second["id"], **asked)
        while (event := await socket.receive(within_s=300))["type"] not in TERMINAL:
            pass  # generating the summary takes a while
        third = event["response"]
        assert [item["type"] for item in third["output"]] == ["compaction", "message"]
        assert cached(third) >= length  # the summary's prompt; that of the answer is new

        last = await socket.response(input="Go on.", previous_response_id=third["id"], **GREEDY)
        assert cached(last) > 100  # the compacted context and the answer to it
        assert not server.service.render_fallbacks


class Watched(asyncio.Semaphore):
    """Tells when a summary asks for its turn."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked = asyncio.Event()

    async def acquire(self) -> bool:  # type: ignore[override]
        self.asked.set()
        return await super().acquire()


async def test_a_summary_that_waits_for_its_turn_keeps_no_answer_waiting(
    tiny: ServeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = [{"role": "user", "content": SENTENCE}, {"type": "compaction_trigger"}]
    async with tiny() as server, server.connect() as socket:
        engine = server.server.catalog.engines[0]
        assert isinstance(engine, LlamaEngine)
        assert engine._summaries._value == max(1, len(engine._slots._all) - 1)
        turns = Watched()
        monkeypatch.setattr(engine, "_summaries", turns)
        summary = asyncio.create_task(server.post(input=trigger, store=False))
        await turns.asked.wait()
        assert (await socket.response(input="Hi", **GREEDY))["output"]
        assert not summary.done()
        turns.release()
        status, body = await summary
        assert (status, body["output"][0]["type"]) == (200, "compaction")
