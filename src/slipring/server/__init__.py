"""The only code that knows sockets and HTTP."""
