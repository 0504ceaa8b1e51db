"""Context and slots that fit the memory of a machine."""

from pathlib import Path
from typing import Any

import pytest

from slipring.engines.hub import quantization_and_memory
from slipring.engines.hub.quantization_and_memory import Fit, available_memory, bytes_per_token, fit

GB = 10**9
QWEN3_8B: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 36,
    "qwen3.attention.head_count": 32,
    "qwen3.attention.head_count_kv": 8,
    "qwen3.attention.key_length": 128,
    "qwen3.attention.value_length": 128,
    "qwen3.embedding_length": 4096,
    "qwen3.context_length": 40_960,
}


def test_the_bytes_of_a_token_follow_from_the_heads() -> None:
    assert bytes_per_token(QWEN3_8B) == 36 * 8 * 256 * 2


def test_heads_may_differ_by_layer_and_widths_may_be_left_out() -> None:
    model = {
        "general.architecture": "m",
        "m.block_count": 3,
        "m.attention.head_count": 4,
        "m.attention.head_count_kv": [1, 0, 2],
        "m.embedding_length": 256,
    }
    assert bytes_per_token(model) == 3 * (64 + 64) * 2
    del model["m.attention.head_count_kv"]
    assert bytes_per_token(model) == 3 * 4 * (64 + 64) * 2


@pytest.mark.parametrize(
    ("memory", "context", "slots"),
    [
        (64 * GB, 40_960, 4),
        (24 * GB, 40_960, 2),
        (19 * GB, 33_792, 2),
        (14 * GB, 38_912, 1),
        (10 * GB, 16_384, 1),
        (6 * GB, 4_096, 1),
    ],
)
def test_a_wide_context_comes_before_more_slots(memory: int, context: int, slots: int) -> None:
    fitting = fit(QWEN3_8B, 5 * GB, memory)
    assert fitting == Fit(context, slots, bytes_per_token(QWEN3_8B))


def test_what_is_not_known_is_not_fitted() -> None:
    assert fit(QWEN3_8B, 5 * GB, None) is None
    assert fit({"general.architecture": "mamba", "mamba.context_length": 4096}, GB, 8 * GB) is None
    assert fit(QWEN3_8B | {"qwen3.context_length": None}, GB, 8 * GB) is None


def test_a_fit_says_what_it_takes() -> None:
    assert str(Fit(32_768, 2, 147_456)) == "2 slots of 32,768 tokens (9.7 GB of KV cache)"
    assert str(Fit(4_096, 1, 1_000)) == "one slot of 4,096 tokens (4.1 MB of KV cache)"


def test_the_memory_of_a_machine_and_of_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization_and_memory, "_MEMORY_TABLE", tmp_path / "meminfo")
    monkeypatch.setattr(quantization_and_memory, "_GROUP", tmp_path)
    total = available_memory()
    assert total is None or total > 0
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    assert available_memory() == 65_536
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_memory() == 65_536
    (tmp_path / "memory.max").write_text("9000\n")
    assert available_memory() == 8_000
