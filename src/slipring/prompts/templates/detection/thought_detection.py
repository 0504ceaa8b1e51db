"""Finds the marks of thoughts: around those of a probe, in the prompt, or in the template's source."""

import re

from msgspec import Struct

from slipring.prompts.templates.detection.probes import (
    QUESTION,
    STRINGS,
    TAG,
    TEXT,
    THOUGHT,
    Probe,
    common_prefix,
    is_blank,
    user,
)

_CLOSING = re.compile(rf"\s*(?:{TAG.pattern})\s*")
_LAST_TAG = re.compile(rf"(?:{TAG.pattern})\s*$")
_MARKS_IN_SOURCE = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)


class Thoughts(Struct, frozen=True):
    """The marks of thoughts, and what else the template does around the text of an answer."""

    open: str = ""
    close: str = ""
    are_chunks: bool = False
    """Whether the template takes thoughts as chunks of a message's content, and from no field."""

    def without_empty(self, text: str) -> str:
        """The text without marks of thoughts at its beginning that are around nothing, or only close one."""
        open, close = re.escape(self.open.strip()), re.escape(self.close.strip())
        empty = re.match(rf"\s*(?:{open})?\s*{close}\s*", text)
        return text[empty.end() :] if empty and self.close else text


def find_thoughts(probe: Probe, source: str) -> Thoughts:
    """Find the marks of thoughts. ``probe`` has the variables with which the model thinks."""
    calls = probe.after_question(probe.answer(thoughts=THOUGHT, calls=[STRINGS]))
    text = probe.after_question(probe.answer(thoughts=THOUGHT, text=TEXT))
    found = [each for each in (calls, text) if each is not None and THOUGHT in each]
    if found:
        return _around(probe, found, are_chunks=False)
    chunks = [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": TEXT}]
    written = probe.after_question({"role": "assistant", "content": chunks})
    before, has_thought, after = (written or "").partition(THOUGHT)
    if has_thought and _LAST_TAG.search(before) and _CLOSING.match(after):
        return _around(probe, [before + THOUGHT + after], are_chunks=True)
    return _in_prompt(probe, source)


def _around(probe: Probe, answers: list[str], *, are_chunks: bool) -> Thoughts:
    """Find the marks in answers with thoughts."""
    before, _, _ = answers[0].partition(THOUGHT)
    rests = [answer.partition(THOUGHT)[2] for answer in answers]
    close = _CLOSING.match(common_prefix(rests[0], rests[-1]))
    prompt = probe.after_question(prompt=True) or QUESTION
    opening = before.removeprefix(prompt) if before.startswith(prompt) else ""
    if is_blank(opening):
        last = _LAST_TAG.search(before)
        opening = last.group() if last else ""
        if "assistant" in opening and not prompt.endswith(opening):
            opening = prompt.rpartition(opening)[2]  # that tag begins the answer, and the prompt goes on
    return Thoughts(opening, close.group() if close else "", are_chunks)


def _in_prompt(probe: Probe, source: str) -> Thoughts:
    """Find the marks where the prompt opens thoughts, or in the source, if thoughts are not written."""
    prompt = probe.write([user(QUESTION)], prompt=True) or ""
    for open, close in _MARKS_IN_SOURCE:
        if close in source:
            opened = re.search(rf"{re.escape(open)}\s*$", prompt)
            return Thoughts(opened.group() if opened else open, close)
    return Thoughts()
