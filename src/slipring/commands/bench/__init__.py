"""``slipring bench``: measures where the time of an agent loop goes, against any Responses endpoint.

Talks to the endpoint over its public HTTP and WebSocket API only, so any server can be measured.
"""
