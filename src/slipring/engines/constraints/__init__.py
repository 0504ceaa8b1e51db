"""Constrained output: JSON schemas, tool grammars, limits on calls."""
