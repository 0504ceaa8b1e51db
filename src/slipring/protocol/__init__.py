"""The wire format: requests, items, tools, responses and events as data types.

Reading is lenient (unknown fields pass), writing is exact (every key of the API is present).
"""
