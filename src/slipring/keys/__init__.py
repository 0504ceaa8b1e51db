"""API keys that live in a store: how they are written, and the commands that make and revoke them."""
