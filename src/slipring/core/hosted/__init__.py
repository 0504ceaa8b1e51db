"""Tools that the server runs inside a response: which there are, which calls run, and what may be approved."""
