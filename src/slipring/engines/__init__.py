"""How tokens are made: one interface, and the engines behind it."""
