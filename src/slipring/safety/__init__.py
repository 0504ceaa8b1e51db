"""Safety checks: texts of turns in, verdicts out.

``sources`` are what checks ask. ``Inspector`` runs the configured checks on top of them, with timeouts, a
breaker, limits and a cache.
"""
