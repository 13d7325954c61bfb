"""What a process tells of itself to machines; knows nothing of what it tells."""
