"""``slipring launch``: starts an installed client that uses a server, beside the user's own settings."""
