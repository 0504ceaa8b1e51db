"""Finds personal data with Presidio. ``find_personal_data`` runs in the child process of a sandbox.

Only the child imports this module, before the time of its first call is measured: Presidio imports spaCy.
"""

from functools import cache
from typing import Any

from presidio_analyzer import predefined_recognizers
from tldextract import TLDExtract, tldextract

from slipring.base.errors import InvalidRequest

# By default it downloads a list when it is first used. It brings one that is good enough.
tldextract.TLD_EXTRACTOR = TLDExtract(cache_dir=None, suffix_list_urls=())

_PHONE_SCORE = 0.6
"""Of a phone number that is written like one."""
_OPTIONS = {"PhoneRecognizer": {"leniency": 3}}
"""Only groups that are usual in their country: otherwise addresses of hosts count as phone numbers, too."""


def find_personal_data(recognizers: list[str], texts: list[str]) -> list[dict[str, float]]:
    """For each text, the highest score of each kind of personal data that recognizers find. A task of the
    sandbox. Raises ``InvalidRequest`` for a recognizer that does not exist."""
    loaded = _recognizers(tuple(recognizers))
    return [_personal_data(loaded, text) for text in texts]


def _personal_data(recognizers: list[Any], text: str) -> dict[str, float]:
    scores: dict[str, float] = {}
    for recognizer in recognizers:
        for found in recognizer.analyze(text, recognizer.supported_entities, None):
            kind = found.entity_type
            score = _PHONE_SCORE if _is_written_phone_number(found, text) else float(found.score)
            scores[kind] = max(scores.get(kind, 0.0), min(max(score, 0.0), 1.0))
    return scores


def _is_written_phone_number(found: Any, text: str) -> bool:
    """Whether it is a phone number with its country code, or with its groups apart. Presidio gives every
    phone number the same low score, also a row of digits that may just as well be a time or an id."""
    return found.entity_type == "PHONE_NUMBER" and not text[found.start : found.end].isdigit()


@cache
def _recognizers(names: tuple[str, ...]) -> list[Any]:
    for name in names:
        if not name.endswith("Recognizer") or not hasattr(predefined_recognizers, name):
            raise InvalidRequest(f"settings.recognizers: Presidio has no {name}")
    return [getattr(predefined_recognizers, name)(**_OPTIONS.get(name, {})) for name in names]
