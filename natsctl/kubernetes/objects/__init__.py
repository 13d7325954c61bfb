"""Reads and writes of objects in a cluster."""
