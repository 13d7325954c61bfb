"""Copies buckets to archives, and restores them."""
