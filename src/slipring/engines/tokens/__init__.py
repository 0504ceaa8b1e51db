"""Shared parts of engines that send token ids to their backend, and threads that tokenize."""
