"""One sync of a primary, and the events that enqueue it."""
