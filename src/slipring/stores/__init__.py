"""What outlives a connection."""
