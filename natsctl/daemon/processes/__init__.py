"""Several processes that share the keys of controllers, under one supervisor."""
