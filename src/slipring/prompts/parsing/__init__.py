"""Parsers: model output to deltas."""
