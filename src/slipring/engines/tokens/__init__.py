"""Shared parts of engines that exchange token ids with their backend."""
