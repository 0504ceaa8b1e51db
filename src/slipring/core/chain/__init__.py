"""Chains of responses: the state that a continuation builds on."""
