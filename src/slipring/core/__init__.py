"""What happens: sessions, lanes, turns and the state of responses. Pure: no I/O, clock or randomness."""
