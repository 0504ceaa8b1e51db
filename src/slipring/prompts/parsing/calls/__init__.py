"""Readers of tool calls in model output: one module for each layout of ``output_format``."""
