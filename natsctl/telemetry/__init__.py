"""Logs, metrics, spans, and the hiding of secrets in all of them."""
