"""Turns: each makes one response, from its request to its terminal event."""
