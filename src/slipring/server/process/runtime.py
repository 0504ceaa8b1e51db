"""Log, event loop and threads of a serving process."""
