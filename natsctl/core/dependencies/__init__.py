"""Watches of the objects that a sync reads."""
