"""Prompts rendered by the model's own chat template."""
