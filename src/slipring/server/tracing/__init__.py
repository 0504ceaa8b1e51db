"""Traces of turns, by OpenTelemetry. Imported only if they are on: they need the extra ``otel``."""
