"""Logs, metrics, spans and the hiding of secrets, independent of what is reported."""
