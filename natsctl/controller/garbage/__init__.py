"""Collects secondaries that have no owner."""
