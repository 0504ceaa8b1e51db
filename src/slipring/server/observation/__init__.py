"""What a server reports about itself: ended turns, turn log, metrics, health; and recordings of turns."""
