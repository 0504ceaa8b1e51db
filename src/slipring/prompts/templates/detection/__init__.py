"""Finds out from a chat template how its model writes answers, and which variables control its thoughts."""
