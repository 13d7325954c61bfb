"""Explains the state of a key and measures a controller."""
