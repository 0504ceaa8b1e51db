"""Which client scenarios of the conformance suite apply to slipring's MCP client, and why others do not."""

import re

APPLICABLE = (
    "initialize",
    "tools_call",
    "sse-retry",
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
    "json-schema-2020-12-preservation",
)

NOT_APPLICABLE = {
    "auth/.*": "slipring runs no OAuth flow: the caller brings the token",
    "elicitation-sep1034-client-defaults": "there is no user to ask: elicitation is declined",
    "sep-2640-.*": "the skills extension is not supported",
}
"""By pattern of their names."""


def reason_of(scenario: str) -> str | None:
    """Why a scenario does not apply; None if it does, or if nobody has decided."""
    return next((why for pattern, why in NOT_APPLICABLE.items() if re.fullmatch(pattern, scenario)), None)
