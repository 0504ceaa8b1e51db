"""API keys in a store: their text form, and the commands that create and revoke them."""
