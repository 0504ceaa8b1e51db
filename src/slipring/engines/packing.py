"""How the positions that engines leave are written down: those of token engines, where there are any."""

from slipring.core.state import Positions


def positions() -> Positions | None:
    """None where what token engines need is not installed: then nobody leaves a position worth keeping."""
    try:
        from slipring.prompts.packing import RenderedPositions
    except ModuleNotFoundError:
        return None
    return RenderedPositions()
