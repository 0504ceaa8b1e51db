"""Shared parts of engines that call a remote HTTP server."""
