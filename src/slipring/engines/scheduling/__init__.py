"""Which loops of agents keep their context in an engine's KV cache, and whose turn runs next. Pure."""
