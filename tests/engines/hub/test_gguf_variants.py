"""Which quantizations a repository offers, and which one is served."""

import pytest

from slipring.base.errors import StartupError
from slipring.engines.hub.quantization_and_memory import (
    HubFile,
    Variant,
    choose_variant,
    gigabytes,
    quantization_of,
    variants_of,
)

GB = 10**9


def files(**sizes: float) -> list[HubFile]:
    return [HubFile(f"Model-8B-{name}.gguf", int(size * GB)) for name, size in sizes.items()]


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q5_k_m.gguf", "Q5_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("UD-Q4_K_XL/Model-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("BF16/Model-BF16", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Model-IQ3_XXS.gguf", "IQ3_XXS"),
        ("Model-f16.gguf", "F16"),
        ("Model.gguf", ""),
        ("Q-Model.gguf", ""),
    ],
)
def test_the_quantization_is_read_from_the_name(path: str, quantization: str) -> None:
    assert quantization_of(path) == quantization


def test_parts_of_a_file_are_one_variant_in_their_order() -> None:
    parts = [HubFile(f"Q8_0/Big-Q8_0-0000{number}-of-00003.gguf", 10) for number in (3, 1, 2)]
    other = [HubFile("mmproj-F16.gguf", 1), HubFile("Big.mmproj-f16.gguf", 1), HubFile("imatrix.gguf", 1)]
    other += [HubFile("README.md", 1)]
    (variant,) = variants_of([*parts, *other])
    assert variant == Variant("Q8_0", (parts[1], parts[2], parts[0]))
    assert variant.size == 30


def test_a_variant_with_a_missing_part_is_not_offered() -> None:
    assert variants_of([HubFile("Big-Q8_0-00001-of-00002.gguf", 10)]) == []


@pytest.mark.parametrize(
    ("memory", "chosen"),
    [(None, "Q4_K_M"), (64 * GB, "Q4_K_M"), (6 * GB, "Q4_K_M"), (5 * GB, "Q3_K_M"), (4 * GB, "Q2_K")],
)
def test_the_preferred_quantization_that_fits_is_chosen(memory: int | None, chosen: str) -> None:
    offered = variants_of(files(Q2_K=2.8, Q3_K_M=3.9, Q4_K_M=4.7, Q8_0=8.5, F16=16))
    assert choose_variant("a/b", offered, "", memory).quantization == chosen


def test_without_a_preferred_one_the_largest_that_fits_is_chosen() -> None:
    offered = variants_of([*files(Q2_K=2, F16=16), HubFile("Model.gguf", 3 * GB)])
    assert choose_variant("a/b", offered, "", 8 * GB).files[0].path == "Model.gguf"


@pytest.mark.parametrize("wanted", ["Q8_0", "q8_0", "Model-8B-Q8_0", "Model-8B-Q8_0.gguf"])
def test_a_named_quantization_is_served_whatever_fits(wanted: str) -> None:
    offered = variants_of(files(Q4_K_M=4.7, Q8_0=8.5))
    assert choose_variant("a/b", offered, wanted, GB).quantization == "Q8_0"


@pytest.mark.parametrize(
    ("offered", "wanted", "message"),
    [
        ([], "", "a/b-GGUF has no GGUF file; .* often called b-GGUF"),
        (
            files(Q4_K_M=4.7, Q8_0=8.5),
            "Q4_K_N",
            r"a/b-GGUF has no quantization Q4_K_N: did you mean Q4_K_M\?; it has Q4_K_M \(4.7 GB\), Q8_0",
        ),
        (
            files(Q4_K_M=4.7, Q8_0=8.5),
            "",
            r"the smallest of its files, Q4_K_M \(4.7 GB\), needs 5.8 GB of memory; 2.0 GB are available",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_to_do(
    offered: list[HubFile], wanted: str, message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        choose_variant("a/b-GGUF", variants_of(offered), wanted, 2 * GB)


def test_sizes_are_readable() -> None:
    assert [gigabytes(size) for size in (0, 3_000_000, 98_362_432, 5_027_783_488)] == [
        *("0.0 MB", "3.0 MB"),
        *("0.1 GB", "5.0 GB"),
    ]
