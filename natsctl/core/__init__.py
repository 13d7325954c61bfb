"""The one machine that every surface stands on: informer, cache, workqueue, sync loop."""
