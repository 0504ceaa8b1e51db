"""``slipring bench``: drives any Responses endpoint and tells where an agent loop's time goes.

Uses nothing of slipring but the public wire: what it measures may be any server.
"""
