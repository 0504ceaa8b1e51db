"""Valid GGUF metadata is read; invalid metadata raises ``GgufError``."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.prompts.tokenization.gguf_metadata import GgufError, read_metadata
from tests.prompts.gguf_writer import array, entry, string
from tests.prompts.vocabulary import smollm2_metadata

SCALARS: dict[int, tuple[str, list[Any]]] = {
    0: ("<B", [0, 255]),
    1: ("<b", [-128, 127]),
    2: ("<H", [0, 65535]),
    3: ("<h", [-32768, 32767]),
    4: ("<I", [0, 2**32 - 1]),
    5: ("<i", [-(2**31), 2**31 - 1]),
    6: ("<f", [0.5, -2.0]),
    7: ("<?", [True, False]),
    10: ("<Q", [0, 2**64 - 1]),
    11: ("<q", [-(2**63), 2**63 - 1]),
    12: ("<d", [0.1, -1e300]),
}


def header(entries: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, 7, entries)


def file(*entries: bytes, **fields: Any) -> bytes:
    return header(len(entries), **fields) + b"".join(entries)


def read(data: bytes) -> dict[str, Any]:
    return read_metadata(memoryview(data))


def everything() -> tuple[bytes, dict[str, Any]]:
    entries, expected = [], {}
    for kind, (code, values) in SCALARS.items():
        for number, value in enumerate(values):
            entries.append(entry(f"scalar {kind} {number}", kind, struct.pack(code, value)))
            expected[f"scalar {kind} {number}"] = value
        packed = b"".join(struct.pack(code, value) for value in values)
        entries.append(entry(f"array {kind}", 9, array(kind, len(values), packed)))
        expected[f"array {kind}"] = values
    entries += [
        entry("text", 8, string("Grüße 🙂")),
        entry("texts", 9, array(8, 3, string("a") + string("") + string("é"))),
        entry("none", 9, array(8, 0, b"")),
        entry("", 8, string("")),
    ]
    expected |= {"text": "Grüße 🙂", "texts": ["a", "", "é"], "none": [], "": ""}
    return file(*entries), expected


def test_every_type_of_value_is_read() -> None:
    data, expected = everything()
    assert read(data) == expected
    assert list(read(data)) == list(expected)


def test_tensors_after_the_metadata_are_not_read() -> None:
    data, expected = everything()
    assert read(data + b"\xff" * 100) == expected


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_of_the_format_are_read(version: int) -> None:
    assert read(file(version=version)) == {}


def test_a_truncated_file_is_refused() -> None:
    data, _ = everything()
    for length in range(len(data)):
        with pytest.raises(GgufError):
            read(data[:length])


@pytest.mark.parametrize(
    "data",
    [
        file(magic=b"GGML"),
        file(magic=b"FUGG"),
        file(version=0),
        file(version=1),
        file(version=4),
        file(version=0x03000000),
        header(2**64 - 1),
        header(65_537) + entry("k", 0, b"\0") * 65_537,
        header(1) + struct.pack("<Q", 2**64 - 1) + b"key",
        header(1) + struct.pack("<Q", 2**63) + b"key",
        file(entry("k", 8, struct.pack("<Q", 2**64 - 1))),
        file(entry("k", 9, array(8, 2**64 - 1, string("a")))),
        file(entry("k", 9, array(8, 16_777_216, string("a")))),
        file(entry("k", 9, array(12, 2**61, bytes(64)))),
        file(entry("k", 9, array(0, 16_777_217, bytes(64)))),
        file(entry("k", 9, array(9, 1, array(0, 1, b"\0")))),
        file(entry("k", 9, array(13, 1, bytes(64)))),
        file(entry("k", 13, bytes(64))),
        file(entry("k", 2**32 - 1, bytes(64))),
    ],
)
def test_invalid_or_very_large_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(GgufError):
        read(data)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_random_bytes_are_read_or_raise_gguf_error(garbage: bytes, entries: int) -> None:
    try:
        metadata = read(header(entries) + garbage)
    except GgufError:
        return
    assert len(metadata) <= entries


def test_invalid_utf8_is_replaced() -> None:
    text = struct.pack("<Q", 2) + b"a\xff"
    assert read(file(entry("k", 8, text))) == {"k": "a\ufffd"}
    assert read(file(entry("k", 9, array(8, 2, string("b") + text)))) == {"k": ["b", "a\ufffd"]}


def test_the_metadata_of_a_real_file_is_read() -> None:
    metadata = smollm2_metadata()
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 8192
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == 49152
