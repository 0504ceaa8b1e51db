"""The verdicts that a finished response keeps about its own items, in memory and in stores.

A response is kept only if the policy of its turn has let all its items pass. The policy therefore stands for
the verdicts about most of them, and only what was flagged is kept one by one. A check that audits may still
refuse the response after its end: then it cannot be continued, and neither can those that have continued it
meanwhile.
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from slipring.core.checks.verdicts import Kind, Side


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
    """What is known about the items of one response."""

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


_NODE_BYTES = 150
_FINDING_BYTES = 150
_TEXT_BYTES = 50
