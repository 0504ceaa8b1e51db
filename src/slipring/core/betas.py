"""API extensions that a client enables for its connection, and the refusal of a rollout without its own."""

from msgspec import Struct

from slipring.base.errors import ApiError, InvalidRequest

_ROLLOUT_HEADER = "OpenAI-Beta: slipring_rollout=v1"


class Betas(Struct, frozen=True):
    """API extensions that a client enabled for its connection."""

    timing: bool = False
    """Send a ``slipring.timing`` event after each response."""
    rollout: bool = False
    """Accept ``rollout`` in ``response.create``, and ``response.append`` events."""
    inject: bool = False
    """Accept ``response.inject`` events."""
    tool_output: bool = False
    """Accept ``response.tool_output.delta`` and ``response.tool_output.done`` events."""
    tool_progress: bool = False
    """Send a ``slipring.mcp_call.progress`` event whenever the server of a hosted call reports progress."""
    short_events: bool = False
    """Omit ``instructions`` and ``tools`` from the response in ``response.created`` and
    ``response.in_progress``."""
    keeps_nothing: bool = False
    """Keep no response in memory after its connection has closed."""


NO_BETAS = Betas()


def missing_rollout(betas: Betas) -> ApiError | None:
    """The error for a rollout on a connection that has not enabled them."""
    if betas.rollout:
        return None
    return InvalidRequest(
        f"'rollout' needs a WebSocket that was opened with the header '{_ROLLOUT_HEADER}'.", param="rollout"
    )
