"""What operators read about sessions, in one line: in ``/health``, ``slipring inspect`` and the log. And the
table of what works in a session, which the documentation has."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from slipring.commands.inspection.verdict import report_of
from slipring.engines.tokens.sglang import _missing_sessions
from slipring.engines.vllm_plugin.sessions import EngineFacts, Limits, limits_of
from tests.engines.chains import turns
from tests.engines.fakes.server import Refuse, in_front_of
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer, tokenizer_directory
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions
from tests.engines.vllm_plugin.test_plugin_sessions import config, model
from tests.harness import Running

pytestmark = pytest.mark.usefixtures("compiled_here")


class Refusing(FakeVllmWithSessions):
    def __init__(self) -> None:
        super().__init__()
        self.sessions.limits = Limits(0, 0, "no sessions are opened, because of the weather")


class Unsettled(FakeVllmWithSessions):
    whole = "vLLM 9.9.9 was not tested with them"


class Older(FakeVllmWithSessions):
    def told(self) -> dict[str, Any]:
        return {"most_sessions": 1, "most_tokens": 1000}


class Sglang(FakeSglang):
    has_sessions = True


class Ranked(Sglang):
    facts: ClassVar[dict[str, Any]] = {"dp_size": 2, "speculative_algorithm": "EAGLE3"}


NO_PLUGIN = "not used: the server has none; start it with VLLM_PLUGINS=slipring_sessions"
NO_FLAG = "not used: the server has none; start it with --enable-streaming-session"


async def told(server: Running) -> Any:
    async with server.http.get(f"{server.server.base_url}/health".replace("/v1", "")) as answer:
        return (await answer.json())["engines"][0]["sessions"]


@pytest.mark.parametrize(
    ("kind", "options", "line", "is_logged"),
    [
        (FakeVllmWithSessions, {}, "used", False),
        (FakeVllmWithSessions, {"sessions": "off"}, "not used: they are switched off", False),
        (FakeVllmWithSessions, {"max_sessions": 0}, "not used: they are switched off", False),
        (FakeVllm, {}, NO_PLUGIN, False),
        (Refusing, {}, "not used: no sessions are opened, because of the weather", True),
        (Older, {}, "not used: the server has the plugin of another version of slipring", True),
        (
            Unsettled,
            {},
            "used, but turns with strict tools, required calls, formats, grammars, seeds, biases or log"
            " probabilities are sent whole: vLLM 9.9.9 was not tested with them",
            True,
        ),
        (Sglang, {}, "used", False),
        (FakeSglang, {}, NO_FLAG, False),
        (
            Ranked,
            {},
            "not used: they are not known to be right with data parallelism (2 ranks), speculative decoding"
            " (EAGLE3)",
            True,
        ),
        (Ranked, {"sessions": "on"}, "used", False),
    ],
)
async def test_how_turns_use_sessions(
    kind: type[FakeTokenServer],
    options: dict[str, Any],
    line: str,
    is_logged: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "slipring"):
        async with in_front_of(kind(), **options) as (fake, server):
            assert await told(server) == line
            assert (line.removeprefix("not used: ") in caplog.text) is is_logged
            given = "".join(f",{name}={value}" for name, value in options.items())
            report = await report_of(
                f"{kind.maker.name}:{fake.url},tokenizer={tokenizer_directory()},dialect=chatml{given}"
            )
    assert report.model.sessions == line


async def test_a_server_that_refuses_sessions_for_a_while_is_named_too() -> None:
    async with in_front_of(FakeVllmWithSessions()) as (fake, server), server.connect() as socket:
        (one,) = await turns(socket, "one")
        fake.script(Refuse(400, "There is no room for another session."))
        await turns(socket, "two", after=one["id"])
        assert await told(server) == (
            "not opened at present: The engine refused the request: There is no room for another session."
        )


async def test_engines_without_sessions_say_nothing() -> None:
    report = await report_of(tokenizer_directory())
    assert report.model.sessions is None


# The table of the documentation

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "vllm-sessions.md"
NGRAM = SimpleNamespace(method="ngram")
SEQS = {"max_num_seqs": 4, "scheduler_cls": None}
VLLM: dict[str, dict[str, Any]] = {
    "plain turns, warmups": {},
    "strict tools, required calls, formats, grammars": {},
    "seeds, log probabilities, biases": {},
    "sliding windows": {
        "model_config": model(
            hf_text_config=SimpleNamespace(layer_types=["sliding_attention", "full_attention"])
        ),
        "cache_config": SimpleNamespace(num_gpu_blocks=1000, block_size=16),
    },
    "LoRA adapters": {"lora_config": SimpleNamespace(max_loras=2)},
    "speculative decoding": {"speculative_config": NGRAM},
    "several API processes": {"parallel_config": SimpleNamespace(data_parallel_size=1, _api_process_count=2)},
    "data parallelism": {"parallel_config": SimpleNamespace(data_parallel_size=2)},
    "KV transfer": {"kv_transfer_config": object()},
    "Mamba layers and other state": {"model_config": model(is_hybrid=True)},
    "another scheduler": {"scheduler_config": SimpleNamespace(**{**SEQS, "scheduler_cls": "mine"})},
    "one request at once": {"scheduler_config": SimpleNamespace(**{**SEQS, "max_num_seqs": 1})},
}
SGLANG: dict[str, dict[str, Any]] = {
    "plain turns, warmups": {},
    "strict tools, required calls, formats, grammars": {},
    "seeds, log probabilities, biases": {},
    "speculative decoding": {"speculative_algorithm": "EAGLE"},
    "several API processes": {"tokenizer_worker_num": 2},
    "data parallelism": {"dp_size": 2},
    "KV transfer": {"disaggregation_mode": "decode"},
    "Mamba layers and other state": {"uses_mamba_radix_cache": True},
}
OWN = ("strict tools, required calls, formats, grammars", "seeds, log probabilities, biases")


def table() -> Iterator[tuple[str, list[str]]]:
    section = PAGE.read_text().partition("## What works in a session\n")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| ([^|].*) \|$", section, re.M):
        name, *cells = line.split(" | ")
        yield name.partition(" (")[0], cells


def in_vllm(name: str, version: str) -> str:
    limits = limits_of(EngineFacts.of(config(**VLLM[name]), version))
    if limits.refused:
        return "refused"
    return "sent whole" if limits.whole and name in OWN else "in a session"


def test_the_documentation_says_what_works_in_a_session() -> None:
    rows = dict(table())
    assert rows.keys() == VLLM.keys()
    for name in VLLM:
        expected = [in_vllm(name, version) for version in ("0.25.1", "0.26.0", "0.32.3", "0.33.0")]
        assert rows[name][:4] == expected, name
        if name in SGLANG:
            missing = _missing_sessions({"enable_streaming_session": True, **SGLANG[name]})
            assert rows[name][4] == ("in a session" if missing is None else "refused"), name
