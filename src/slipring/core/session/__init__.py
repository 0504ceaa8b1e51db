"""The state machine of one connection: client events and driver results in, actions out."""
