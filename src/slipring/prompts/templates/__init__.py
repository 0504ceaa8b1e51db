"""Rendering with the chat template that a model ships."""
