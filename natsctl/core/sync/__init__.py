"""Takes keys from the work queue and syncs them."""
