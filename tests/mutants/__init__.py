"""Mutants of the turn's life, and the property machines that must find each of them."""
