"""``slipring bench load``: many connections at once, more and more of them, until a service level breaks."""
