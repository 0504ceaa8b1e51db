"""Tools that the server runs itself: how requests define them, and the items and errors of their calls."""
