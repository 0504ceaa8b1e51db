"""slipring: the Responses API over one persistent WebSocket, in front of any engine."""

__version__ = "0.2.0"

__all__ = ["__version__"]
