"""Reads and writes of primaries that are safe under concurrency."""
