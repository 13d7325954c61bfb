"""Probes and metrics over HTTP."""
