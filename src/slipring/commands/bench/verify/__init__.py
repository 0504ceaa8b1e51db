"""Checks of answers: event order, deltas against items, and whether the whole history was read."""
