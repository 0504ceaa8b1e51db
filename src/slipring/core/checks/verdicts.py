"""What a safety check inspects, and what it answers.

A subject is one item of a conversation, or a window of an answer in the making. A verdict is the answer of
one check about one subject. Verdicts are kept with responses, so they contain nothing of the inspected text.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, structs

Side = Literal["input", "output"]
Kind = Literal["message", "tool_output", "instructions", "answer", "call", "reasoning", "summary"]
_NODE_BYTES = 150
_FINDING_BYTES = 150
_TEXT_BYTES = 50


class Subject(Struct, frozen=True):
    """A text that checks inspect, and where in the conversation it stands."""

    side: Side
    kind: Kind
    text: str
    role: str | None = None
    """The role of a message."""
    name: str | None = None
    """The name of the tool that was called, or whose output this is."""
    context: tuple[str, ...] = ()
    """Earlier texts of the conversation, oldest first. A check may read them in order to understand ``text``;
    its verdict is about ``text`` only."""


class Verdict(Struct, frozen=True):
    """The answer of one check about one subject."""

    check: str
    version: str
    flagged: bool
    scores: dict[str, float] = {}
    """A score from 0 to 1 for every category that the check reports."""
    categories: tuple[str, ...] = ()
    """The categories whose score has reached the threshold."""
    failed: str | None = None
    """Why the check gave no answer; it never contains the inspected text. None if the check answered."""
    ms: float = 0.0
    """How long the check took; 0 for a verdict that was known already."""


class Finding(Struct, frozen=True, array_like=True):
    """A check has flagged an item of a response."""

    side: Side
    kind: Kind
    check: str
    version: str
    categories: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        texts = (self.check, self.version, *self.categories)
        return _FINDING_BYTES + sum(_TEXT_BYTES + len(text) for text in texts)


class NodeVerdicts(Struct, frozen=True, array_like=True):
    """The verdicts that a finished response keeps about its own items, in memory and in stores.

    A response is kept only if the policy of its turn has let all its items pass. The policy therefore stands
    for the verdicts about most of them, and only what was flagged is kept one by one. A check that audits may
    still refuse the response after its end: then it cannot be continued, and neither can those that have
    continued it meanwhile.
    """

    policy: bytes
    """The digest of the policy under which its items, and its head, were inspected; empty if a check gave no
    answer about some of them."""
    findings: tuple[Finding, ...] = ()
    """Items that were flagged and nevertheless kept."""
    is_audited: bool = False
    """Whether it, or a response that it continues, may be refused after its end."""
    refused_by: str | None = None
    """The check that has refused it after its end."""

    @property
    def size_bytes(self) -> int:
        return _NODE_BYTES + sum(finding.size_bytes for finding in self.findings)

    def audited(self, findings: Iterable[Finding], refused_by: str | None) -> "NodeVerdicts":
        """These verdicts after an audit: what it has found, and which check refuses the response."""
        together = tuple(dict.fromkeys((*self.findings, *findings)))
        return structs.replace(self, findings=together, refused_by=self.refused_by or refused_by)
