"""The one machine that every surface stands on: informer, table, workqueue, sync loop."""
