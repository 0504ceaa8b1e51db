"""What is measured: the endpoint, the server started for it, its processes, and this machine."""
