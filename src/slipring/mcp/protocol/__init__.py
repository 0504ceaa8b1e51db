"""The protocol without I/O: messages, and the state machine of one connection."""
