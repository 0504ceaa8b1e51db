"""Runs loops in every mode and collects their results in a record."""
