"""Valid headers of GGUF files are read; invalid ones raise ``GgufError``."""

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.engines.llama.packaged_model import packaged_model
from slipring.prompts.tokenization.gguf_metadata import GgufError, Layout, Tensor, read_layout, read_metadata
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


def header(entries: int, *, magic: bytes = b"GGUF", version: int = 3, tensors: int = 7) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries)


def file(*entries: bytes, **fields: Any) -> bytes:
    return header(len(entries), **fields) + b"".join(entries)


def read(data: bytes) -> dict[str, Any]:
    return read_metadata(memoryview(data))


def layout(data: bytes) -> Layout:
    return read_layout(memoryview(data))


def tensor(offset: int, *shape: int, name: str = "t", type: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


def aligned_to(value: int, kind: int = 4, code: str = "<I") -> bytes:
    return entry("general.alignment", kind, struct.pack(code, value))


def with_tensors(
    *tensors: bytes, entries: tuple[bytes, ...] = (), size: int = 64, alignment: int = 32
) -> bytes:
    """A file with tensors, whose values take ``size`` bytes."""
    data = file(*entries, tensors=len(tensors)) + b"".join(tensors)
    return data + bytes(-len(data) % alignment + size)


def everything(tensors: int = 7) -> tuple[bytes, dict[str, Any]]:
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
    return file(*entries, tensors=tensors), expected


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


INVALID = pytest.mark.parametrize(
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


@INVALID
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


# Where tensors are.


def test_tensors_are_found_behind_all_types_of_metadata() -> None:
    metadata, _ = everything(tensors=2)
    tensors = tensor(0, 3, name="first") + tensor(32, 5, 2, name="second ü", type=8)
    begin = -(-len(metadata + tensors) // 32) * 32
    data = (metadata + tensors).ljust(begin, b"\0") + bytes(100)
    found = layout(data)
    assert (found.header_size, found.alignment) == (begin, 32)
    first, second = found.tensors
    assert (first.shape, first.type, first.offset, first.size) == ((3,), 0, 0, 32)
    assert (second.shape, second.type, second.offset, second.size) == ((5, 2), 8, 32, 68)
    assert second.elements == 10
    for each in found.tensors:
        assert struct.unpack_from("<IQ", data, each.fields_at) == (each.type, each.offset)


def test_the_order_of_tensors_is_that_of_the_header() -> None:
    found = layout(with_tensors(tensor(32, 8), tensor(0, 8))).tensors
    assert [(each.offset, each.size) for each in found] == [(32, 32), (0, 32)]


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_tensors_may_be_aligned_otherwise(alignment: int) -> None:
    tensors = tensor(0, 1), tensor(4 * alignment, 1)
    entries = (aligned_to(alignment),)
    data = with_tensors(*tensors, entries=entries, size=8 * alignment, alignment=alignment)
    found = layout(data)
    assert found.alignment == alignment
    assert found.header_size == len(data) - 8 * alignment
    assert found.header_size % alignment == 0
    assert [each.size for each in found.tensors] == [4 * alignment] * 2


def test_a_file_may_have_no_tensors_and_a_tensor_no_dimensions() -> None:
    assert layout(with_tensors()).tensors == ()
    (number,) = layout(with_tensors(tensor(0))).tensors
    assert number == Tensor(number.fields_at, (), 0, 0, 64)
    assert number.elements == 1


def test_a_header_that_ends_too_early_has_no_layout() -> None:
    metadata, _ = everything(tensors=1)
    data = metadata + tensor(0, 3)
    for length in range(len(data)):
        with pytest.raises(GgufError):
            layout(data[:length])


@INVALID
def test_a_file_with_invalid_metadata_has_no_layout(data: bytes) -> None:
    with pytest.raises(GgufError):
        layout(data)


@pytest.mark.parametrize(
    "data",
    [
        with_tensors(tensor(16, 1)),
        with_tensors(tensor(96, 1)),
        with_tensors(tensor(0, 1), tensor(2**63, 1)),
        with_tensors(tensor(0, 1, 1, 1, 1, 1)),
        file(tensors=65_537) + tensor(0, 1) * 65_537,
        file(tensors=2**64 - 1),
        *(with_tensors(tensor(0, 1), entries=(aligned_to(value),)) for value in (0, 24, 2**17)),
        with_tensors(tensor(0, 1), entries=(entry("general.alignment", 8, string("32")),)),
        with_tensors(tensor(0, 1), entries=(aligned_to(-32, 5, "<i"),)),
    ],
)
def test_tensors_outside_the_file_and_very_large_numbers_are_refused(data: bytes) -> None:
    with pytest.raises(GgufError):
        layout(data)


@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_random_bytes_have_a_layout_or_raise_gguf_error(garbage: bytes, entries: int, tensors: int) -> None:
    data = header(entries, tensors=tensors) + garbage
    try:
        found = layout(data)
    except GgufError:
        return
    assert len(found.tensors) == tensors
    assert all(found.header_size + each.offset + each.size <= len(data) for each in found.tensors)


def test_the_tensors_of_a_real_file_are_found() -> None:
    path = packaged_model()
    assert path is not None
    found = layout(Path(path).read_bytes())
    assert Counter(each.type for each in found.tensors) == {3: 210, 0: 61, 8: 1}
    # Of each type, 32 values take as many bytes.
    sizes = {3: 20, 0: 128, 8: 34}
    assert all(each.size == each.elements // 32 * sizes[each.type] for each in found.tensors)
