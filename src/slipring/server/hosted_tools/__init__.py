"""Hosted tools: which MCP servers a request may use, their lists, their calls, and used approvals."""
