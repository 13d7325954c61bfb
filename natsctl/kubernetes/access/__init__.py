"""Cluster addresses and credentials."""
