"""Turns: each produces one response, from its request to its terminal event."""
