"""Transports: WebSocket, and HTTP with JSON or SSE."""
