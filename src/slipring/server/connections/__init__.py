"""TCP connections: accepting, deadlines, byte limits, request bodies."""
