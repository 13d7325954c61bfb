"""Serves the console over HTTP, to the browser of its user only."""
