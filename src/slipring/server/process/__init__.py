"""Processes: starting, supervising and stopping servers and workers; their event loop and their memory."""
