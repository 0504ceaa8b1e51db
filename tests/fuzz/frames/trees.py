"""Changes of JSON values that keep their structure: valid events become nearly valid ones."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.frames.json_text import hard_value
from tests.fuzz.frames.seeds import CALL, CONVERSATION, EARLIER, EARLIER_CALL, ITEM, LATEST, WORDS, Tree

_NAMES = (LATEST, EARLIER, CALL, EARLIER_CALL, ITEM, CONVERSATION, "resp_0", "a", "b", "simulated", "")
_INTEGERS = (0, 1, -1, 2, 20, 21, 255, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30)
_FLOATS = (0.0, -0.0, 0.5, 1.0, 2.0, 2.0000001, -2.0, 1e308, 5e-324)
Slot = tuple[Any, Any]
"""A list or an object, and an index or a key of it."""
_CONTAINERS = (dict, list)


def slots(tree: Tree) -> list[Slot]:
    """All places of a tree at which there is a value."""
    found: list[Slot] = []
    waiting = [tree]
    for each in waiting:
        if isinstance(each, _CONTAINERS):
            keys = list(each) if isinstance(each, dict) else range(len(each))
            found += [(each, key) for key in keys]
            waiting += [each[key] for key in keys if isinstance(each[key], _CONTAINERS)]
    return found


def copied(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list) else tree


def changed(rng: random.Random, tree: Tree, others: Sequence[Tree], *, hard: float) -> Tree:
    """A tree with a few changes. ``others``: trees that parts are taken from; ``hard``: how many of the new
    values are hard to read."""
    tree = copied(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = slots(tree)
        if not places:
            return hard_value(rng)
        place = rng.choice(places)
        if rng.random() < hard:
            place[0][place[1]] = hard_value(rng)
        else:
            rng.choice(_CHANGES)(rng, place, others)
    return tree


def _remove(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    del place[0][place[1]]


def _repeat(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    container, key = place
    if isinstance(container, list):
        times = rng.choice((1, 1, 1, 2, 30))
        container[key:key] = [copied(container[key]) for _ in range(times)]
    else:
        container[rng.choice(WORDS)] = copied(container[key])


def _other_scalar(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    container, key = place
    drawn: Sequence[Sequence[Any]] = (_NAMES, WORDS, WORDS, _INTEGERS, _FLOATS, (None, True, False, [], {}))
    container[key] = rng.choice(rng.choice(drawn))


def _similar_scalar(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    """Another value of the same type."""
    container, key = place
    value = container[key]
    if isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int):
        container[key] = rng.choice(_INTEGERS)
    elif isinstance(value, float):
        container[key] = rng.choice(_FLOATS)
    elif isinstance(value, str):
        container[key] = _similar_text(rng, value)
    else:
        container[key] = None


def _similar_text(rng: random.Random, text: str) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(_NAMES)
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return text * rng.choice((2, 2, 100))
    if kind == 3:
        at = rng.randrange(len(text) + 1)
        return (
            text[:at]
            + rng.choice(("\0", "\u2028", "é", "😀", " ", '"', "\\", "<|im_end|>", "\n"))
            + text[at:]
        )
    if kind == 4:
        return text[: rng.randrange(len(text) + 1)]
    return text.swapcase()


def _wrap(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    container, key = place
    container[key] = [container[key]] if rng.random() < 0.5 else {rng.choice(WORDS): container[key]}


def _unwrap(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    container, key = place
    value = container[key]
    if isinstance(value, _CONTAINERS) and value:
        inner = list(value.values()) if isinstance(value, dict) else value
        container[key] = rng.choice(inner)


def _rename(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    container, key = place
    if isinstance(container, dict):
        container[rng.choice(WORDS)] = container.pop(key)
    else:
        rng.shuffle(container)


def _add(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    """A key of the API, with a part of another tree."""
    container, _ = place
    value = _part(rng, others)
    if isinstance(container, dict):
        container[rng.choice(WORDS)] = value
    else:
        container.insert(rng.randrange(len(container) + 1), value)


def _transplant(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    place[0][place[1]] = _part(rng, others)


def _same_key(rng: random.Random, place: Slot, others: Sequence[Tree]) -> None:
    """What stands under the same key in another tree; and if there is none, more of the fields of one."""
    container, key = place
    other = rng.choice(others)
    found = [each[at] for each, at in slots(other) if at == key] if isinstance(key, str) else []
    if found:
        container[key] = copied(rng.choice(found))
    elif isinstance(container, dict) and isinstance(other, dict):
        container.update({name: copied(value) for name, value in other.items() if rng.random() < 0.5})


def _part(rng: random.Random, others: Sequence[Tree]) -> Tree:
    places = slots(rng.choice(others))
    if not places:
        return None
    container, key = rng.choice(places)
    return copied(container[key])


_CHANGES: tuple[Callable[[random.Random, Slot, Sequence[Tree]], None], ...] = (
    _remove,
    _repeat,
    _other_scalar,
    _similar_scalar,
    _similar_scalar,
    _wrap,
    _unwrap,
    _rename,
    _add,
    _transplant,
    _same_key,
    _same_key,
)
