"""A Responses API client that records what is sent and received in each turn, and when."""
