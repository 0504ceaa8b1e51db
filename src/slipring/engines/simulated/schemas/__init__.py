"""Values that fit a JSON Schema, for calls and documents that a model would have made."""
