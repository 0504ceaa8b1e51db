"""The Decisions API: questions about one input, answered with probabilities."""
