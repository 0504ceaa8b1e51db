"""The Chat Completions API as typed data, and its translation into the protocol's own requests and events."""
