"""Recommended sampling, as files state it and as requests override it."""

import pytest

from slipring.core.generation import Defaults, Settings
from slipring.engines.tokens.sampling import Sampling

QWEN = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}


def fields(sampling: Sampling, **settings: float) -> dict[str, float]:
    asked = Settings(**settings)  # type: ignore[arg-type]
    return sampling.fields(asked, unlimited_top_k=-1, penalty_name="repetition_penalty")


def test_generation_config_is_read() -> None:
    assert Sampling.from_generation_config(QWEN) == Sampling(0.6, 0.95, 20, None, 1.05)


def test_generation_config_without_sampling_recommends_greedy_decoding() -> None:
    assert Sampling.from_generation_config({"do_sample": False, "temperature": 0.6}) == Sampling(0.0)


def test_generation_config_without_values_recommends_nothing() -> None:
    assert Sampling.from_generation_config({"eos_token_id": 2}) == Sampling()


def test_gguf_metadata_is_read_without_the_digits_of_32_bit_floats() -> None:
    metadata = {
        "general.sampling.temp": 0.699999988079071,
        "general.sampling.top_k": 64,
        "general.sampling.top_p": 0.949999988079071,
        "general.sampling.min_p": 0.009999999776482582,
        "general.sampling.penalty_repeat": 1.0499999523162842,
        "general.sampling.penalty_last_n": 256,
    }
    assert Sampling.from_gguf(metadata) == Sampling(0.7, 0.95, 64, 0.01, 1.05, 256)


def test_defaults_of_a_llama_server_are_read() -> None:
    params = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "seed": 1}
    penalty = {"repeat_penalty": 1.0, "repeat_last_n": 64}
    assert Sampling.from_llama_server({**params, **penalty}) == Sampling(0.8, 0.95, 40, 0.05, 1.0, 64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 99, "0.7", True, None, [0.7]])
def test_values_out_of_range_are_ignored(value: object) -> None:
    assert Sampling.from_generation_config({"temperature": value}).temperature is None


def test_a_request_overrides_only_what_it_names() -> None:
    recommended = Sampling.from_generation_config(QWEN)
    asked = fields(recommended, temperature=1.5)
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (1.5, 0.95, 20)
    assert asked["repetition_penalty"] == 1.05


def test_temperature_zero_of_a_request_is_kept() -> None:
    assert fields(Sampling(temperature=0.6), temperature=0.0)["temperature"] == 0.0


def test_without_recommendation_nothing_is_cut() -> None:
    asked = fields(Sampling())
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["min_p"]) == (1.0, 1.0, -1, 0.0)
    assert asked["repetition_penalty"] == 1.0


def test_known_fields_leave_the_rest_to_the_server() -> None:
    known = Sampling(temperature=0.6).known_fields(Settings(top_p=0.5), penalty_name="repeat_penalty")
    assert known == {"temperature": 0.6, "top_p": 0.5}


def test_defaults_are_what_the_api_has_fields_for() -> None:
    assert Sampling.from_generation_config(QWEN).defaults() == Defaults(temperature=0.6, top_p=0.95)
