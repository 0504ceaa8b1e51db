"""``slipring inspect``: shows what slipring makes of a model, without loading its weights."""
