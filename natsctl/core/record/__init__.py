"""Recordings of syncs: their notes, their bound, and their format."""
