"""Compiling what clients send, away from the event loop: in child processes that may fail.

Grammars, JSON schemas and regular expressions can be short and take for ever. ``Sandbox`` runs the functions
of ``tasks`` on them in processes of its own, within bounds on time, memory, number and size. What exceeds a
bound is refused; neither the server nor another tenant notices.
"""
