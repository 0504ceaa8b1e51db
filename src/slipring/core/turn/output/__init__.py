"""The output of a turn: its items and the events that show them to the client."""
