"""``slipring doctor``: checks what a server would need on this machine, before it starts."""
