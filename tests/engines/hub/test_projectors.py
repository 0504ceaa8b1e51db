"""Which projector a model gets."""

import pytest

from slipring.engines.hub.projectors import why_blind, with_projector
from slipring.engines.hub.quantization_and_memory import HubFile, choose_variant, variants_of

GB = 10**9


def files(**sizes: float) -> list[HubFile]:
    return [HubFile(f"Model-8B-{name}.gguf", int(size * GB)) for name, size in sizes.items()]


@pytest.mark.parametrize(
    ("projectors", "chosen"),
    [
        (("mmproj-BF16", "mmproj-F16", "mmproj-F32"), "mmproj-F16"),
        (("mmproj-Model-8B-Q8_0", "mmproj-Model-8B-f16"), "mmproj-Model-8B-f16"),
        (("Model-8B.mmproj-Q8_0", "Model-8B.mmproj-fp16"), "Model-8B.mmproj-fp16"),
        (("mmproj-F32", "mmproj-BF16"), "mmproj-BF16"),
        (("mmproj-Q8_0", "mmproj-F32"), "mmproj-F32"),
        (("mmproj-model", "mmproj-Q5_1"), "mmproj-Q5_1"),  # the smaller of two unknown ones
        (("mmproj-F16", "mmproj-Model-8B-Q8_0"), "mmproj-Model-8B-Q8_0"),  # it has the model's name
        ((), None),
    ],
)
def test_a_projector_is_chosen_by_the_name_of_the_model_and_its_format(
    projectors: tuple[str, ...], chosen: str | None
) -> None:
    offered = files(Q4_K_M=4.7, Q8_0=8.5)
    offered += [HubFile(f"{name}.gguf", GB - index) for index, name in enumerate(projectors)]
    variants = variants_of(offered)
    variant = with_projector(choose_variant("a/b", variants, "", None), variants, offered, None)
    assert (variant.projector and variant.projector.path) == (chosen and f"{chosen}.gguf")
    assert variant.left_out is None
    assert why_blind(variant, None) == ""


def test_a_projector_of_another_model_is_not_taken() -> None:
    parts = [HubFile(f"Q8_0/Eye-7B-Q8_0-0000{number}-of-00002.gguf", 10) for number in (1, 2)]
    offered = [*parts, HubFile("Eye-7B-Q4_K_M-new.gguf", 5), HubFile("mmproj-F16.gguf", 1)]

    def projectors() -> list[str]:
        variants = variants_of(offered)
        found = [with_projector(each, variants, offered, None).projector for each in variants]
        return ["" if file is None else file.path for file in found]

    assert projectors() == ["mmproj-F16.gguf"] * 2
    offered.append(HubFile("Blind-8B.gguf", 30))
    assert projectors() == [""] * 3
    offered.append(HubFile("mmproj-Eye-7B-F32.gguf", 1))
    assert projectors() == ["mmproj-Eye-7B-F32.gguf"] * 2 + [""]


def test_a_projector_counts_towards_the_memory_and_is_left_out_if_that_is_too_small() -> None:
    offered = [*files(Q4_K_M=4.7), HubFile("mmproj-F16.gguf", GB)]
    variants = variants_of(offered)
    needed = int(5.7 * GB) + 2**30
    variant = with_projector(variants[0], variants, offered, needed)
    assert (variant.needed, variant.size) == (needed, int(5.7 * GB))
    assert str(variant) == "Q4_K_M (4.7 GB) with mmproj-F16.gguf (1.0 GB)"
    blind = with_projector(variants[0], variants, offered, needed - 1)
    assert (blind.loaded, str(blind)) == (variants[0].files, "Q4_K_M (4.7 GB)")
    assert why_blind(blind, needed - 1) == (
        "images are not available: Q4_K_M with mmproj-F16.gguf (1.0 GB) needs 6.8 GB of memory, 6.8 GB are"
        " available"
    )
