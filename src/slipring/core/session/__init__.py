"""Session state machine: client events in, actions out, for one connection."""
