"""Servers, processes and data that the measurements share."""
