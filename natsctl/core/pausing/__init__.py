"""Holds back the syncs of paused keys and controllers."""
