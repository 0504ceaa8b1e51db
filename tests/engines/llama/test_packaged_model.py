"""The copy of the packaged model: what is in it, where it is, and what is served if there can be none."""

import logging
import os
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from slipring.engines.llama import packaged_model
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.packaged_model import as_q8_0, cache_directory, fast_copy, file_to_load
from slipring.engines.llama.served_model import locate
from slipring.prompts.tokenization.gguf_metadata import GgufError, read_layout
from tests.harness import serve
from tests.prompts.gguf_writer import entry, string

F32, F16, Q4_1, Q8_0, UNKNOWN = 0, 1, 3, 8, 99


class Stored(NamedTuple):
    """A tensor of a file."""

    shape: tuple[int, ...]
    type: int
    data: bytes


def q4_1(scale: float, base: float, codes: bytes) -> bytes:
    return struct.pack("<ee", scale, base) + codes


def random_blocks(random: Random, count: int) -> bytes:
    """Blocks as they occur, and some that do not: negative scales, and only one value or only zeros."""
    blocks = []
    for _ in range(count):
        scale = random.choice([random.uniform(0, 0.2), random.uniform(-0.2, 0), random.uniform(0, 50), 0.0])
        base = random.choice([random.uniform(-1, 1), random.uniform(-300, 0), 0.0])
        blocks.append(q4_1(scale, base, random.randbytes(16)))
    return b"".join(blocks)


def weights_of_q4_1(data: bytes) -> list[float]:
    weights: list[float] = []
    for scale, base, codes in struct.iter_unpack("<ee16s", data):
        weights += [scale * (code & 15) + base for code in codes]
        weights += [scale * (code >> 4) + base for code in codes]
    return weights


def weights_of_q8_0(data: bytes) -> tuple[list[float], list[float]]:
    """The weights, and the step of each."""
    blocks = [(scale, codes) for scale, *codes in struct.iter_unpack("<e32b", data)]
    return [scale * code for scale, codes in blocks for code in codes], [
        scale for scale, _ in blocks for _ in range(32)
    ]


def write(path: Path, *tensors: Stored, alignment: int | None = None) -> Path:
    """Write a GGUF file. Without an alignment, it has the default one and does not say so."""
    entries = [entry("general.name", 8, string("Grüße")), entry("some.number", 6, struct.pack("<f", 0.1))]
    if alignment is not None:
        entries.append(entry("general.alignment", 4, struct.pack("<I", alignment)))
    unit = alignment or 32
    infos, values = [], b""
    for number, (shape, kind, data) in enumerate(tensors):
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos.append(string(f"tensor {number}") + dimensions + struct.pack("<IQ", kind, len(values)))
        values += data + b"\0" * (-len(data) % unit)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries)) + b"".join([*entries, *infos])
    path.write_bytes(header + b"\0" * (-len(header) % unit) + values)
    return path


def parts(path: Path) -> tuple[bytes, list[Stored]]:
    """The header without what says how and where tensors are stored, and the tensors with their padding."""
    data = path.read_bytes()
    layout = read_layout(memoryview(data))
    header = bytearray(data[: layout.header_size])
    tensors = []
    for tensor in layout.tensors:
        header[tensor.fields_at : tensor.fields_at + 12] = bytes(12)
        begin = layout.header_size + tensor.offset
        tensors.append(Stored(tensor.shape, tensor.type, data[begin : begin + tensor.size]))
    return bytes(header), tensors


def blocks_of(*shape: int) -> Stored:
    return Stored(shape, Q4_1, random_blocks(Random(repr(shape)), prod(shape) // 32))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small file, in which there is something to convert."""
    return write(tmp_path / "Small-Q4_1.gguf", blocks_of(64, 3), Stored((2,), F32, bytes(8)))


@pytest.fixture
def packaged(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The same file as the packaged model, and a cache directory that does not exist yet."""
    monkeypatch.setattr(packaged_model, "packaged_model", lambda: str(source))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(source)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# What is in a copy.


@pytest.mark.parametrize("alignment", [None, 8, 32, 256])
def test_weights_are_within_half_a_step_and_all_else_is_as_it_was(
    tmp_path: Path, alignment: int | None
) -> None:
    tensors = [
        Stored((3,), F32, struct.pack("<3f", 1, 2, 3)),
        blocks_of(32),
        blocks_of(96, 3),
        Stored((5, 3), F16, struct.pack("<15e", *range(15))),
        blocks_of(32, 5, 7),
        blocks_of(64, 1, 1, 3),
        Stored((64,), Q8_0, struct.pack("<e32b", 0.5, *range(32)) * 2),
        Stored((7,), UNKNOWN, b"unknown"),
        blocks_of(32, 1),
    ]
    source = write(tmp_path / "Odd.gguf", *tensors, alignment=alignment)
    header, before = parts(source)
    copied_header, after = parts(fast_copy(source, tmp_path))
    assert copied_header == header
    assert len(after) == len(before)
    for old, new, written in zip(before, after, tensors, strict=True):
        assert new.shape == old.shape
        if old.type != Q4_1:
            assert new == old
            continue
        assert new.type == Q8_0
        expected = weights_of_q4_1(written.data)
        # The rest aligns the tensor behind.
        assert not new.data[len(expected) // 32 * 34 :].strip(b"\0")
        weights, steps = weights_of_q8_0(new.data[: len(expected) // 32 * 34])
        assert len(weights) == len(expected)
        for weight, wanted, step in zip(weights, expected, steps, strict=True):
            assert abs(weight - wanted) <= 0.5001 * step


def test_a_large_tensor_is_converted_in_pieces_like_its_blocks(tmp_path: Path) -> None:
    large = blocks_of(32, packaged_model._BLOCKS_AT_ONCE + 3)
    plain = Stored((100_000,), F32, Random(1).randbytes(400_000))
    _, (converted, unchanged) = parts(fast_copy(write(tmp_path / "Large.gguf", large, plain), tmp_path))
    assert unchanged.data == plain.data
    last = packaged_model._BLOCKS_AT_ONCE + 2
    for number in (0, 1, last - 4, last - 3, last - 2, last - 1, last):
        alone = as_q8_0(large.data[number * 20 : number * 20 + 20])
        assert converted.data[number * 34 : number * 34 + 34] == alone


def test_weights_that_are_all_zero_or_too_small_for_a_step_are_zero() -> None:
    tiny = q4_1(6e-8, 0.0, bytes(range(16)))
    assert as_q8_0(q4_1(0.0, 0.0, b"\x51" * 16) + tiny) == bytes(68)


def test_weights_of_the_smallest_steps_stay_in_range() -> None:
    weights, (step, *_) = weights_of_q8_0(as_q8_0(q4_1(12 * 2**-24, 0.0, b"\xf0" * 16)))
    assert weights == [0.0] * 16 + [127 * step] * 16


@pytest.mark.parametrize(
    "block",
    [q4_1(float("inf"), 0, b"\x01" * 16), q4_1(0, float("nan"), bytes(16)), b"\0\x7c\0\xfc" + bytes(16)],
)
def test_weights_that_are_no_numbers_are_refused(block: bytes) -> None:
    with pytest.raises(GgufError, match="not finite"):
        as_q8_0(block)


def test_a_file_without_such_weights_needs_no_copy(tmp_path: Path) -> None:
    plain = write(tmp_path / "Plain.gguf", Stored((2,), F32, bytes(8)))
    assert fast_copy(plain, tmp_path / "cache") == plain
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("tensor", [Stored((33,), Q4_1, bytes(64)), Stored((64,), Q4_1, bytes(20))])
def test_tensors_that_are_not_whole_are_refused(tmp_path: Path, tensor: Stored) -> None:
    with pytest.raises(GgufError, match="shorter than its shape"):
        fast_copy(write(tmp_path / "Short.gguf", tensor), tmp_path)


# Where it is, and when it is made.


def test_a_copy_is_made_once(source: Path, tmp_path: Path) -> None:
    copy = fast_copy(source, tmp_path / "deep" / "cache")
    made = copy.stat()
    assert fast_copy(source, copy.parent) == copy
    assert copy.stat() == made
    assert files(copy.parent) == [copy.name]
    assert copy.name.startswith("Small-Q4_1.as-Q8_0.")


def test_the_same_file_elsewhere_has_the_same_copy(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    other.write_bytes(source.read_bytes())
    assert fast_copy(other, tmp_path / "cache") == fast_copy(source, tmp_path / "cache")


def test_another_file_or_version_makes_another_copy_and_removes_the_others(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    copies = [fast_copy(source, cache)]
    (cache / "someone's.gguf").write_bytes(b"not ours")

    def expect_another() -> None:
        copies.append(fast_copy(source, cache))
        assert len(set(copies)) == len(copies)
        assert files(cache) == sorted([copies[-1].name, "someone's.gguf"])

    data = bytearray(source.read_bytes())
    layout = read_layout(memoryview(bytes(data)))
    data[layout.header_size + layout.tensors[0].offset + 4] ^= 1  # one code of one weight
    source.write_bytes(data)
    expect_another()
    source = source.rename(tmp_path / "Renamed-Q4_1.gguf")
    expect_another()
    monkeypatch.setattr(packaged_model, "_CONVERSION_VERSION", packaged_model._CONVERSION_VERSION + 1)
    expect_another()


@pytest.mark.parametrize("change", [-1, 1])
def test_a_copy_of_the_wrong_size_is_made_again(source: Path, tmp_path: Path, change: int) -> None:
    copy = fast_copy(source, tmp_path / "cache")
    whole = copy.read_bytes()
    os.truncate(copy, len(whole) + change)
    assert fast_copy(source, copy.parent) == copy
    assert copy.read_bytes() == whole
    assert files(copy.parent) == [copy.name]


def test_only_old_unfinished_copies_are_removed(source: Path, tmp_path: Path) -> None:
    """A start that was killed has left one; the other belongs to a server that starts at the same time."""
    copy = fast_copy(source, tmp_path / "cache")
    killed, running = (copy.with_name(f"{copy.name}.{each}.unfinished") for each in ("killed", "running"))
    for path in (killed, running):
        path.write_bytes(copy.read_bytes()[:100])
    os.utime(killed, (0, 0))
    copy.unlink()
    assert fast_copy(source, tmp_path / "cache") == copy
    assert files(copy.parent) == [copy.name, running.name]


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_directory() == Path("/cache/slipring")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory() == Path("/home/me/.cache/slipring")


# What is served.


def test_the_copy_of_the_packaged_model_is_loaded(packaged: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "slipring"):
        loaded = Path(file_to_load(packaged))
        assert file_to_load(packaged) == str(loaded)
    assert loaded.parent == cache_directory()
    assert loaded.stat().st_mode & 0o077 == loaded.parent.stat().st_mode & 0o077 == 0
    (line,) = caplog.messages  # of the first start only
    assert line == f"preparing the packaged model for faster prompts, once ({loaded})"


def test_other_models_are_loaded_as_they_are(packaged: str, tmp_path: Path) -> None:
    own = write(tmp_path / "Own-Q4_1.gguf", blocks_of(64, 3))
    assert file_to_load(str(own)) == str(own)
    assert not cache_directory().exists()


def expect_original(packaged: str, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Expect that the packaged model itself is loaded, and that one warning says why."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "slipring"):
        assert file_to_load(packaged) == packaged
    (line,) = caplog.messages
    assert line.startswith(
        "the packaged model is served as it is installed, and takes a third to a half longer"
    )
    assert reason in line
    if cache_directory().is_dir():
        assert files(cache_directory()) == []


def test_without_a_directory_for_it_the_original_is_loaded(
    packaged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    expect_original(packaged, caplog, "Not a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_in_a_directory_that_is_read_only_the_original_is_loaded(
    packaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache_directory().mkdir(mode=0o500, parents=True)
    expect_original(packaged, caplog, "Permission denied")


def test_without_a_home_the_original_is_loaded(
    packaged: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user/cache")
    with caplog.at_level(logging.WARNING, "slipring"):
        assert file_to_load(packaged) == packaged
    (line,) = caplog.messages
    assert "home directory" in line


def test_without_numpy_the_original_is_loaded(
    packaged: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    expect_original(
        packaged, caplog, "numpy is not installed (pip install '.[llama]' in a checkout of slipring)"
    )


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """While the block runs, this process can write no larger file: as on a full disk, a write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_nothing_and_the_next_start_tries_again(
    packaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    with largest_file(100):
        expect_original(packaged, caplog, "File too large")
    assert file_to_load(packaged) != packaged


def test_a_file_that_cannot_be_converted_is_loaded_itself(
    packaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    last = q4_1(float("inf"), 0, bytes(16))
    write(Path(packaged), blocks_of(64, 3), Stored((32,), Q4_1, last))  # found when half of it is written
    expect_original(packaged, caplog, "not finite")
    Path(packaged).write_bytes(b"GGUF")
    expect_original(packaged, caplog, "the file ends within its metadata")


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_a_new_user_gets_the_copy_and_clients_see_the_packaged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = LlamaEngine(LlamaOptions(slots=1, context=512, threads=1))
    assert engine.model.path == locate(LlamaOptions())[0], "what is read of the model is read of its own file"
    async with serve(engine) as server, server.connect() as socket:
        answer = await socket.response(
            input="Explain in two sentences what a computer is.", max_output_tokens=12, temperature=0
        )
        (copy,) = (tmp_path / "slipring").iterdir()
        if sys.platform == "linux":
            assert str(copy) in mapped_files(engine._host.pid)  # type: ignore[attr-defined]
    assert answer["model"] == "smollm2-135m-instruct"
    (message,) = answer["output"]
    assert "computer" in message["content"][0]["text"]
