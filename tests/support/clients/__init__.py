"""Clients that do not use natsctl."""
