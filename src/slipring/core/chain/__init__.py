"""Chains of responses: the state of finished responses, and how a continuation extends it."""
