"""The sampling that a model's authors recommend, and the sampling fields of a request body.

Authors publish it in ``generation_config.json``, and converters copy it into GGUF metadata
(``general.sampling.*``). A request overrides the values that it names; the others stay as recommended.
"""

import math
from typing import Any

from msgspec import Struct

from slipring.core.generation import Defaults, Settings

_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
    "penalty_window": "general.sampling.penalty_last_n",
}


class Sampling(Struct, frozen=True):
    """Recommended values; None where the authors recommend nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    penalty_window: int | None = None
    """To how many of the last tokens the repetition penalty applies."""

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> "Sampling":
        """From the metadata of a GGUF file."""
        return cls._from({name: metadata.get(key) for name, key in _GGUF_KEYS.items()})

    @classmethod
    def from_generation_config(cls, config: dict[str, Any]) -> "Sampling":
        """From the content of a ``generation_config.json``. One without ``do_sample`` that names no value
        recommends nothing; ``do_sample: false`` recommends greedy decoding."""
        if config.get("do_sample") is False:
            return cls(temperature=0.0)
        return cls._from({name: config.get(name) for name in _GGUF_KEYS})

    @classmethod
    def from_llama_server(cls, params: dict[str, Any]) -> "Sampling":
        """From the defaults that a llama-server reports: its flags, its model's metadata, or its own."""
        named = {name: params.get(name) for name in _GGUF_KEYS}
        penalty = {
            "repetition_penalty": params.get("repeat_penalty"),
            "penalty_window": params.get("repeat_last_n"),
        }
        return cls._from({**named, **penalty})

    @classmethod
    def _from(cls, values: dict[str, Any]) -> "Sampling":
        """Keep the values that are in range: files are written by many tools."""
        top_k, window = _number(values["top_k"], 1, 2**31), _number(values["penalty_window"], 0, 2**31 - 1)
        return cls(
            temperature=_number(values["temperature"], 0, 2),
            top_p=_number(values["top_p"], 0, 1),
            top_k=int(top_k) if top_k is not None else None,
            min_p=_number(values["min_p"], 0, 1),
            repetition_penalty=_number(values["repetition_penalty"], 0.01, 10),
            penalty_window=int(window) if window is not None else None,
        )

    def defaults(self) -> Defaults:
        """The values that the API has fields for: response objects show them."""
        return Defaults(temperature=self.temperature, top_p=self.top_p)

    def known_fields(self, settings: Settings, *, penalty_name: str) -> dict[str, Any]:
        """The sampling fields that the request or the authors have a value for, as a request body names them.

        Servers differ in the name of the repetition penalty.
        """
        fields = {
            "temperature": self.temperature if settings.temperature is None else settings.temperature,
            "top_p": self.top_p if settings.top_p is None else settings.top_p,
            "top_k": self.top_k if settings.top_k is None else settings.top_k,
            "min_p": self.min_p,
            "presence_penalty": settings.presence_penalty,
            "frequency_penalty": settings.frequency_penalty,
            penalty_name: self.repetition_penalty,
            "logit_bias": {str(id): bias for id, bias in settings.logit_bias.items()} or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def fields(self, settings: Settings, *, penalty_name: str, unlimited_top_k: int) -> dict[str, Any]:
        """All sampling fields. Those without a value get one that cuts nothing, whatever the server's own
        default is. Servers differ in the ``top_k`` that means no limit."""
        return {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": unlimited_top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            penalty_name: 1.0,
            **self.known_fields(settings, penalty_name=penalty_name),
        }


def _number(value: object, least: float, most: float) -> float | None:
    """A finite number in range, without the digits that a 32-bit float adds to 0.95; otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 6) if least <= value <= most else None
