"""Engines: the interface that generates responses, its implementations, and the parts that they share."""
