"""``slipring top``: shows in a terminal what a running server does, from the stream of its admin listener.

It uses the wire only, and imports nothing of the server.
"""
