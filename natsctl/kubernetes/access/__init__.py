"""Credentials and addresses of clusters."""
