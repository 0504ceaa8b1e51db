"""Compares rendered texts: what they have in common, cut where a mark begins or ends.

A mark is a tag such as ``<tool_call>``, ``<|im_end|>`` or ``[INST]``. Two texts may have a part of a tag in
common by chance (``<|START_TEXT|>`` and ``<|START_ACTION|>``); such a part counts as different.
"""

import re

TAG = re.compile(r"<[^<>\n]*[^<>\s]>|\[/?[A-Z][A-Z_ ]*\]")
_OPENING = re.compile(r"<[^<>\n]*$|\[/?[A-Z_]*$")


def common_prefix(one: str, other: str) -> str:
    """What both texts begin with, without a part of a tag at its end."""
    length = _common_length(one, other)
    prefix = one[:length]
    if length == len(one) == len(other):
        return prefix
    opened = _OPENING.search(prefix)
    return prefix[: opened.start()] if opened else prefix


def common_suffix(one: str, other: str) -> str:
    """What both texts end with, without a part of a tag at its beginning."""
    length = _common_length(one[::-1], other[::-1])
    start = len(one) - length
    cut = next((tag.end() for tag in TAG.finditer(one) if tag.start() < start < tag.end()), start)
    return one[cut:]


def _common_length(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def from_first_tag(text: str) -> str:
    """The text from its first tag on, whole or begun; without white space before it if there is none."""
    found = re.search(r"[<\[]", text)
    return text[found.start() :] if found else text.lstrip()


def is_blank(text: str) -> bool:
    return not text.strip()


def marked(text: str) -> str:
    """The text, or nothing if it is only white space."""
    return "" if is_blank(text) else text
