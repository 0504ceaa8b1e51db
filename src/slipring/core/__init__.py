"""The protocol's state machine: sessions, lanes, turns and chains. Pure: no I/O, clock or randomness."""
