"""Reads and writes of objects that are safe under concurrency."""
