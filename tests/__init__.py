"""The tests of slipring.

This directory and ``mcp`` are regular packages so that pytest knows the names of the modules in ``mcp``. It
would otherwise try ``mcp.…`` first, and import the MCP SDK for that in every process.
"""
