"""Compiles grammars, JSON schemas and patterns of clients, and reads their documents, in child processes.

Such input can be short and still take for ever to compile. ``Sandbox`` bounds time, memory, processes and
sizes; input that exceeds a limit is rejected without any effect on the event loop or on other tenants.
"""
