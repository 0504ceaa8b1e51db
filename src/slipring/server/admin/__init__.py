"""The admin listener: what operators see of a running server, apart from the API.

It serves the live page, the live stream that feeds it and ``slipring top``, and the health of the server:
ids, sizes and times, no content of requests or answers.
"""
