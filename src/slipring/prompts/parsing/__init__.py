"""Model output to deltas: text, thoughts and tool calls."""
