"""The steps of a response: its jobs, the pauses between them, and the input that clients add to it."""
