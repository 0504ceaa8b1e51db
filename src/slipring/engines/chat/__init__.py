"""The chat engine: any server of the Chat Completions API."""
