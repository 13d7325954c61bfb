"""The work queue, its order, its timers and its backoff."""
