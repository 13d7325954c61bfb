"""Decides which process may work on which key."""
