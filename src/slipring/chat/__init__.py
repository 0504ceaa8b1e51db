"""The terminal chat: a client of any Responses endpoint, over one WebSocket.

It speaks the public wire and knows nothing of the server in this package.
"""
