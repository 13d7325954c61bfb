"""Probes and metrics over HTTP: the server, its endpoints and a client."""
