"""How the positions that engines leave are written down: those of token engines, where there are any."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipring.prompts.rendering_codec import RenderedPositions


def positions() -> "RenderedPositions | None":
    """None where what token engines need is not installed: then nobody leaves a position worth keeping."""
    try:
        from slipring.prompts.rendering_codec import RenderedPositions
    except ModuleNotFoundError:
        return None
    return RenderedPositions()
