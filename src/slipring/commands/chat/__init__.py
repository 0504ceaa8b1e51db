"""``slipring chat``: a terminal client for any Responses endpoint that accepts WebSockets.

Uses only the public API of the server and imports nothing else of this package.
"""
