"""Processes: starting, supervising and stopping servers and workers."""
