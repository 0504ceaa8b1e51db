"""What a server reports about itself: ended turns, turn log, metrics, health, memory, lag of the event loop."""
