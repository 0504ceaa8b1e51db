"""The Messages API: its requests become create requests, and the events of their turns its own events."""
