"""``slipring bench load``: adds concurrent connections until a service level is violated."""
