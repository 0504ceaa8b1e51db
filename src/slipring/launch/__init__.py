"""``slipring launch``: starts an installed client that uses a server; the user's settings stay as they are."""
