"""Dialects: prompt formats implemented in Python, one module per model family."""
