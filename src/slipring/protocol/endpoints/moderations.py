"""Moderation requests and answers: the categories, the inputs that may be sent, and their texts."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire

_MOST_INPUTS = 256
MODERATION_CATEGORIES: Final = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
"""The categories of the API. Clients with strict types expect all of them in every result."""


class ModerationRequest(Struct):
    input: Raw
    model: str | None = None


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: Raw


Inputs = str | Annotated[list[str], Meta(min_length=1, max_length=_MOST_INPUTS)]
Parts = Annotated[list[TextPart | ImagePart], Meta(min_length=1, max_length=_MOST_INPUTS)]


class ModerationResult(Struct):
    """What the checks say about one input."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]
    """Empty for categories of the API that no check reports."""

    @classmethod
    def of(cls, scores: dict[str, float], flagged: set[str]) -> "ModerationResult":
        """A result with all categories of the API, and those that checks report besides."""
        names = (*MODERATION_CATEGORIES, *(name for name in scores if name not in MODERATION_CATEGORIES))
        return cls(
            flagged=bool(flagged),
            categories={name: name in flagged for name in names},
            category_scores={name: scores.get(name, 0.0) for name in names},
            category_applied_input_types={name: ["text"] if name in scores else [] for name in names},
        )


class ModerationAnswer(Struct):
    id: str
    model: str
    results: list[ModerationResult]


_moderation_request = msgspec.json.Decoder(ModerationRequest)
_moderation_inputs: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(Inputs)
_moderation_parts: msgspec.json.Decoder[list[TextPart | ImagePart]] = msgspec.json.Decoder(Parts)


def read_moderation(body: bytes) -> ModerationRequest:
    return wire.decode(_moderation_request, body)


def read_moderation_texts(given: Raw) -> list[str]:
    """The texts to classify, one for each result. A list of parts is one input."""
    data = bytes(given)
    if not data.removeprefix(b"[").lstrip().startswith(b"{"):
        inputs = wire.decode(_moderation_inputs, data, where="input")
        return [inputs] if isinstance(inputs, str) else inputs
    texts = []
    for index, part in enumerate(wire.decode(_moderation_parts, data, where="input")):
        if isinstance(part, ImagePart):
            raise UnsupportedParameter(
                f"Unsupported value: 'input[{index}]' is an image, and this server's checks read text.",
                param=f"input[{index}]",
            )
        texts.append(part.text)
    return ["\n".join(texts)]
