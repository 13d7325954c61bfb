"""Creations of external resources: recorded before, and linked after."""
