"""slipring: the Responses API over one persistent WebSocket, in front of any engine."""

__version__ = "1.0.0rc1"

__all__ = ["__version__"]
