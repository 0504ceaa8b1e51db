"""Stores: data that outlives a connection."""
