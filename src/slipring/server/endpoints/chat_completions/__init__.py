"""The endpoint of the Chat Completions API."""
