"""The simulated engine: answers without a model."""
