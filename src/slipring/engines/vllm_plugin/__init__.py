"""What runs in the processes of vLLM: sessions, their corrections, and the name of the server."""
