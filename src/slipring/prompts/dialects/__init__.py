"""Dialects: prompt formats that are written here rather than by a template."""
