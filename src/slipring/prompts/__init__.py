"""How items become tokens and back: tokenizers, dialects, rendering by delta, parsers. Pure."""
