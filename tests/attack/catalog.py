"""All attacks, in the order of execution: attacks that share a server are adjacent."""

from tests.attack import (
    bounds,
    compiling,
    compressed,
    documents,
    floods,
    malformed,
    other_apis,
    parsing,
    pictures,
    schedule,
    signals,
    tokenizing,
    unfinished,
    unread,
)
from tests.attack.stage import Attack

_GROUPS = (
    *(bounds, compiling, parsing, pictures, documents, other_apis, tokenizing, unread, unfinished),
    *(compressed, floods, malformed, signals, schedule),
)
_ENGINES = ("simulated", "tokens", "llama", "scheduled", "seeing")


def _place(attack: Attack) -> tuple[bool, int]:
    spec = attack.spec
    return bool(spec.limits or spec.flags or spec.descriptors), _ENGINES.index(spec.engine)


ATTACKS: list[Attack] = sorted((each for group in _GROUPS for each in group.attack.attacks), key=_place)
