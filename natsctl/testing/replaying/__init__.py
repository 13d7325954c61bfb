"""Replays a recorded sync in memory."""
