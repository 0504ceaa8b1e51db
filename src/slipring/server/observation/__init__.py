"""What a server reports about itself: ended turns, turn log, metrics, health, memory, event loop lag."""
