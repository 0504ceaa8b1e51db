"""The drivers: streamable HTTP, the older HTTP+SSE, and processes on standard input and output."""
