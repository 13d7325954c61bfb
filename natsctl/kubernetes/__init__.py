"""Kubernetes: the only place that knows how it is spoken to."""
