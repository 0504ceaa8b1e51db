"""Items to token ids and model output back to deltas: tokenizers, renderers, parsers. Pure: no I/O."""
