"""Safety checks without I/O: what is inspected, what a check answered, and what a policy makes of it."""
