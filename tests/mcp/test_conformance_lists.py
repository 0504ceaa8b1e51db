"""The documented lists of conformance scenarios are those that `make conformance-mcp` asserts."""

import re
from pathlib import Path

from tests.mcp.conformance.scenarios import APPLICABLE, NOT_APPLICABLE

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"


def test_the_document_has_both_lists() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("## MCP")[2]
    passing = re.search(r"These pass: (.*?)\.\n\n", text, re.DOTALL)
    assert passing is not None
    assert tuple(re.findall(r"`([^`]+)`", passing[1])) == APPLICABLE
    assert dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)) == NOT_APPLICABLE
