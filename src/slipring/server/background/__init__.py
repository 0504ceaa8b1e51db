"""Background responses: running, recording, streaming and cancelling them."""
